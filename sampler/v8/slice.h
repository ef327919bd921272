/*
 * From a V8 profile to aligned 10 s slices.
 *
 * Invariants: over all slices the hits of a node add up to its hitCount, except (root) and (idle),
 * which are left out; slices follow each other without a gap from the profile's start to its end,
 * also where nothing was hit. Pure: the clock is handed in. Any thread.
 */
#ifndef SAMPLER_V8_SLICE_H
#define SAMPLER_V8_SLICE_H

#include "proto/base/time.h"
#include "proto/formats/formats.h"
#include "sampler/sampler.h"

#define EF_SLICE_SPAN_NS (10 * EF_NS_PER_S)

/* Both clocks in the moment the profile arrived. */
struct ef_v8_clock {
    ef_wall_ns wall;
    ef_mono_ns mono;
};

/*
 * planned_interval_ns 0: an orphan. ret is set on success only; release with ef_cpu_profile_fini.
 * EF_ECORRUPT: times or counts no profile has; EF_ELIMIT: more hits than we keep; EF_ENOMEM.
 */
EF_MUST_USE ef_rc ef_v8_slice(const struct ef_cpuprofile *cpuprofile,
                              const struct ef_v8_clock *clock, uint64_t planned_interval_ns,
                              struct ef_cpu_profile *ret, struct ef_err *err);

#endif
