/*
 * Decides which time, stratum and weight samples are published with. Must not know of sessions. The
 * thread of its target.
 */
#include "sampler/agent/fragment.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/wire.h"

static ef_rc
add_slice(const struct ef_world *world, struct ef_fragment *fragment,
          const struct ef_cpu_profile *cpu, const struct ef_slice *slice, struct ef_err *err)
{
    struct ef_fragment_sample *samples = NULL;
    size_t count = slice->node_count < EF_WIRE_PAIRS_MAX ? slice->node_count : EF_WIRE_PAIRS_MAX;
    size_t ticks = 0;
    ef_rc rc;

    if (count > 0 && (samples = calloc(count, sizeof(*samples))) == NULL)
        return ef_err_set(err, EF_ENOMEM, "fragment of %zu stacks: out of memory", count);
    for (size_t i = 0; i < count; i++) {
        samples[i].node = slice->nodes[i];
        samples[i].count = slice->hits[i];
        samples[i].value = (int64_t)(slice->hits[i] * cpu->interval_ns);
        ticks += slice->hits[i];
    }
    fragment->start_ns = slice->start_ns;
    fragment->span_ns = slice->span_ns;
    fragment->samples = samples;
    fragment->sample_count = count;
    fragment->tick_ms = slice->tick_count >= ticks && ticks > 0 ? slice->tick_ms : NULL;
    fragment->tick_count = fragment->tick_ms != NULL ? ticks : 0;
    rc = world->add_fragment(world->arg, fragment, err);
    free(samples);
    return rc;
}

static struct ef_fragment
frame_of(const struct ef_source *source, const struct ef_profile *profile, const uint64_t *hashes,
         const struct ef_fragment_gauges *gauges)
{
    return (struct ef_fragment){
        .source = *source,
        .profile = profile,
        .hashes = hashes,
        .heap_used_bytes = gauges->heap_used_bytes,
        .heap_limit_bytes = gauges->heap_limit_bytes,
    };
}

ef_rc
ef_fragment_cpu(const struct ef_world *world, const struct ef_source *source,
                const struct ef_cpu_profile *cpu, uint64_t weight_milli,
                const struct ef_usage_ring *usage, const struct ef_fragment_gauges *gauges,
                struct ef_err *err)
{
    struct ef_fragment fragment;
    uint64_t *hashes = NULL;
    ef_rc rc = ef_profile_hashes(cpu->profile, &hashes, err);

    if (rc != EF_OK)
        return rc;
    fragment = frame_of(source, cpu->profile, hashes, gauges);
    fragment.profile_type = 1;
    fragment.interval = cpu->interval_ns;
    fragment.interval_measured = cpu->interval_measured_ns;
    for (size_t i = 0; i < cpu->slice_count && rc == EF_OK; i++) {
        const struct ef_slice *slice = &cpu->slices[i];
        const struct ef_usage_bucket *bucket = ef_usage_find(usage, slice->start_ns);
        fragment.stratum = ef_usage_is_hot(bucket);
        /* A bucket may have begun after the last reading: then the one before tells most. */
        if (bucket == NULL)
            bucket = ef_usage_find(usage, slice->start_ns - EF_USAGE_BUCKET_NS);
        fragment.weight_milli = weight_milli * ef_usage_run_milli(bucket) / 1000;
        fragment.pause_ns = i + 1 == cpu->slice_count ? (uint64_t)gauges->pause_ns : 0;
        rc = add_slice(world, &fragment, cpu, slice, err);
    }
    free(hashes);
    return rc;
}

ef_rc
ef_fragment_heap_add(const struct ef_world *world, const struct ef_source *source,
                     const struct ef_profile *profile, const struct ef_fragment_heap *what,
                     const struct ef_usage_ring *usage, const struct ef_fragment_gauges *gauges,
                     bool *ret_restarted, struct ef_err *err)
{
    struct ef_fragment fragment;
    struct ef_fragment_sample *samples = NULL;
    uint64_t *hashes = NULL;
    size_t count = 0;
    ef_rc rc = ef_profile_hashes(profile, &hashes, err);

    if (rc == EF_OK)
        rc = ef_heap_samples(what->diff, profile, hashes, &samples, &count, ret_restarted, err);
    if (rc != EF_OK)
        goto out;
    /* V8 names some samples by nodes that are not in the tree, so bytes may have no object; but a
     * stack without a count would be refused. */
    for (size_t i = 0; i < count; i++)
        samples[i].count += samples[i].count == 0;
    fragment = frame_of(source, profile, hashes, gauges);
    fragment.profile_type = (uint8_t)what->mode;
    fragment.interval = what->interval_bytes;
    fragment.weight_milli = what->weight_milli;
    fragment.stratum = ef_usage_is_hot(ef_usage_find(usage, what->start_ns));
    fragment.pause_ns = (uint64_t)gauges->pause_ns;
    fragment.start_ns = what->start_ns;
    fragment.span_ns = what->span_ns;
    /* Growth may travel in several fragments; a snapshot must be one, or its mean would halve: what
     * does not fit is left out (65,536 stacks of live objects were never seen). */
    for (size_t at = 0; rc == EF_OK && (at < count || at == 0); at += EF_WIRE_PAIRS_MAX) {
        fragment.samples = samples + at;
        fragment.sample_count = count - at < EF_WIRE_PAIRS_MAX ? count - at : EF_WIRE_PAIRS_MAX;
        if (at > 0 && what->mode == EF_HEAP_INUSE)
            break;
        rc = world->add_fragment(world->arg, &fragment, err);
    }
out:
    free(samples);
    free(hashes);
    return rc;
}
