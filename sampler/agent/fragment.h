/*
 * From profiles to published fragments: the cut into 10 s slices, strata, weights. Calls the
 * world's add_fragment; the thread of its target.
 */
#ifndef SAMPLER_AGENT_FRAGMENT_H
#define SAMPLER_AGENT_FRAGMENT_H

#include "sampler/agent/diff.h"
#include "sampler/agent/usage.h"
#include "sampler/agent/world.h"

struct ef_fragment_gauges {
    uint64_t heap_used_bytes, heap_limit_bytes;
    int64_t pause_ns;
};

/* One fragment for each slice; a slice without hits is published too: it was covered. The value of
 * a sample is its hits × the planned interval; what of it was CPU time and not waiting for a CPU is
 * in the slice's weight, times weight_milli. The pause goes with the last slice. */
EF_MUST_USE ef_rc ef_fragment_cpu(const struct ef_world *world, const struct ef_source *source,
                                  const struct ef_cpu_profile *cpu, uint64_t weight_milli,
                                  const struct ef_usage_ring *usage,
                                  const struct ef_fragment_gauges *gauges, struct ef_err *err);

/* One heap fragment: growth (diff given, or a fresh window) or a snapshot of what is alive. */
struct ef_fragment_heap {
    enum ef_heap_mode mode;
    int64_t start_ns;
    uint64_t span_ns;
    uint64_t interval_bytes;
    uint64_t weight_milli;
    struct ef_heap_diff *diff; /* NULL = the values themselves */
};
EF_MUST_USE ef_rc ef_fragment_heap_add(const struct ef_world *world, const struct ef_source *source,
                                       const struct ef_profile *profile,
                                       const struct ef_fragment_heap *what,
                                       const struct ef_usage_ring *usage,
                                       const struct ef_fragment_gauges *gauges, bool *ret_restarted,
                                       struct ef_err *err);

#endif
