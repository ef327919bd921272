/*
 * Decides what a heap profile adds to what was published before. Must not know of V8 or time. One
 * thread at a time.
 */
#include "sampler/agent/diff.h"

#include <stdlib.h>
#include <string.h>

void
ef_heap_diff_init(struct ef_heap_diff *diff, size_t stacks_max)
{
    memset(diff, 0, sizeof(*diff));
    ef_map_init(&diff->bytes, stacks_max);
    ef_map_init(&diff->objects, stacks_max);
}

void
ef_heap_diff_fini(struct ef_heap_diff *diff)
{
    ef_map_fini(&diff->bytes);
    ef_map_fini(&diff->objects);
}

void
ef_heap_diff_reset(struct ef_heap_diff *diff)
{
    ef_map_clear(&diff->bytes);
    ef_map_clear(&diff->objects);
    diff->total_bytes = 0;
}

static bool
find_types(const struct ef_profile *profile, uint32_t *ret_bytes, uint32_t *ret_objects)
{
    bool bytes = false;

    *ret_objects = UINT32_MAX;
    for (uint32_t t = 0; t < profile->type_count; t++) {
        const char *unit = ef_profile_string(profile, profile->types[t].unit);
        if (strcmp(unit, "bytes") == 0) {
            *ret_bytes = t;
            bytes = true;
        } else if (strcmp(unit, "count") == 0) {
            *ret_objects = t;
        }
    }
    return bytes;
}

static int64_t
value_of(const struct ef_profile *profile, uint32_t node, uint32_t type)
{
    int64_t value;

    if (type == UINT32_MAX)
        return 0;
    value = profile->values[(size_t)node * profile->type_count + type];
    return value > 0 ? value : 0;
}

/* One sample per hash: nodes that differ only by column are one stack to the collector. */
static ef_rc
sum_by_stack(const struct ef_profile *profile, const uint64_t *hashes,
             struct ef_fragment_sample **ret_samples, size_t *ret_count, struct ef_err *err)
{
    struct ef_fragment_sample *samples;
    struct ef_map index;
    uint32_t bytes = 0, objects;
    size_t count = 0;
    ef_rc rc = EF_OK;

    if (!find_types(profile, &bytes, &objects))
        return ef_err_set(err, EF_EINVAL, "heap profile has no values in bytes");
    ef_map_init(&index, (size_t)profile->node_count + 1);
    samples = calloc((size_t)profile->node_count + 1, sizeof(*samples));
    for (uint32_t node = 0; node < profile->node_count && samples != NULL; node++) {
        int64_t value = value_of(profile, node, bytes);
        int64_t object_count = value_of(profile, node, objects);
        uint64_t *slot;
        bool fresh;
        if (node == 0 || (value == 0 && object_count == 0))
            continue;
        slot = ef_map_upsert(&index, hashes[node], &fresh);
        if (slot == NULL) {
            free(samples);
            samples = NULL;
            break;
        }
        if (fresh) {
            samples[count].node = node;
            *slot = count++;
        }
        samples[*slot].value += value;
        samples[*slot].count += (uint64_t)object_count;
    }
    ef_map_fini(&index);
    if (samples == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "heap profile: out of memory");
    else {
        *ret_samples = samples;
        *ret_count = count;
    }
    return rc;
}

/* Growth above the highest value so far; raises it. */
static bool
take_growth(struct ef_map *highest, uint64_t hash, uint64_t now, uint64_t *ret_growth)
{
    bool fresh;
    uint64_t *before = ef_map_upsert(highest, hash, &fresh);

    if (before == NULL)
        return false;
    *ret_growth = now > *before ? now - *before : 0;
    if (now > *before)
        *before = now;
    return true;
}

ef_rc
ef_heap_samples(struct ef_heap_diff *diff, const struct ef_profile *profile, const uint64_t *hashes,
                struct ef_fragment_sample **ret_samples, size_t *ret_count, bool *ret_restarted,
                struct ef_err *err)
{
    struct ef_fragment_sample *samples = NULL;
    size_t count = 0, kept = 0;
    int64_t total = 0;
    ef_rc rc = sum_by_stack(profile, hashes, &samples, &count, err);

    if (rc != EF_OK)
        return rc;
    for (size_t i = 0; i < count; i++)
        total += samples[i].value;
    *ret_restarted = diff != NULL && total < diff->total_bytes;
    if (*ret_restarted)
        ef_heap_diff_reset(diff);
    for (size_t i = 0; i < count && diff != NULL; i++) {
        uint64_t bytes, objects, hash = hashes[samples[i].node];
        if (!take_growth(&diff->bytes, hash, (uint64_t)samples[i].value, &bytes) ||
            !take_growth(&diff->objects, hash, samples[i].count, &objects)) {
            free(samples);
            return ef_err_set(err, EF_ELIMIT, "heap profile has more than %zu stacks",
                              diff->bytes.count_max);
        }
        if (bytes == 0 && objects == 0)
            continue;
        samples[kept].node = samples[i].node;
        samples[kept].value = (int64_t)bytes;
        samples[kept++].count = objects;
    }
    if (diff != NULL) {
        count = kept;
        diff->total_bytes = total;
    }
    *ret_samples = samples;
    *ret_count = count;
    return EF_OK;
}
