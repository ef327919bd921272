/*
 * Decides how samples of one bucket are kept and merged. Must not know where they come from.
 */
#include "collector/aggregate/bucket.h"

#include <stdlib.h>
#include <string.h>

#define LOG_MIN 64u                 /* entries; a fragment has about 20 */
#define SECTIONS_PER_STRATUM_MAX 64 /* chosen: weights differ by burst plan, not by sample */
#define MALLOC_OVERHEAD 16u

/* ---- merging ---- */

void
ef_merge_fini(struct ef_merge *merge)
{
    free(merge->counts);
    free(merge->values);
    free(merge->seen);
    *merge = (struct ef_merge){0};
}

size_t
ef_merge_bytes(const struct ef_merge *merge)
{
    return (size_t)merge->id_cap * 16 + merge->id_cap / 8;
}

static bool
merge_room(struct ef_merge *merge, uint32_t id_max)
{
    struct ef_merge bigger = {.id_cap = 4096};

    if (id_max < merge->id_cap)
        return true;
    while (bigger.id_cap <= id_max)
        bigger.id_cap *= 2;
    bigger.counts = calloc(bigger.id_cap, sizeof(*bigger.counts));
    bigger.values = calloc(bigger.id_cap, sizeof(*bigger.values));
    bigger.seen = calloc(bigger.id_cap / 64, sizeof(*bigger.seen));
    if (bigger.counts == NULL || bigger.values == NULL || bigger.seen == NULL) {
        ef_merge_fini(&bigger);
        return false;
    }
    ef_merge_fini(merge);
    merge->counts = bigger.counts;
    merge->values = bigger.values;
    merge->seen = bigger.seen;
    merge->id_cap = bigger.id_cap;
    return true;
}

static inline void
merge_add(struct ef_merge *merge, uint32_t id, uint64_t count, int64_t value)
{
    merge->counts[id] += count;
    merge->values[id] += value;
    merge->seen[id / 64] |= UINT64_C(1) << (id % 64);
}

/* Gives the lowest id seen at or after *id and takes it out; false at the end. */
static inline bool
merge_next(struct ef_merge *merge, uint32_t *id)
{
    for (uint32_t word = *id / 64; word < merge->id_cap / 64; word++) {
        if (merge->seen[word] != 0) {
            *id = word * 64 + (uint32_t)__builtin_ctzll(merge->seen[word]);
            merge->seen[word] &= merge->seen[word] - 1;
            return true;
        }
    }
    return false;
}

static uint32_t
log_id_max(const struct ef_section_log *section)
{
    uint32_t id_max = 0;

    for (uint32_t i = 0; i < section->log_len; i++) {
        uint32_t id = (uint32_t)(section->log[i] >> 32);
        id_max = id > id_max ? id : id_max;
    }
    return id_max;
}

static uint32_t
wide_id_max(const struct ef_section_log *section)
{
    uint32_t id_max = 0;

    for (uint32_t i = 0; i < section->wide_len; i++)
        id_max = section->wide[i].stack > id_max ? section->wide[i].stack : id_max;
    return id_max;
}

/* Makes equal stacks one entry; a sum above 32 bits takes several. Without memory the log stays as
 * it is, which is correct too. */
static void
merge_log(struct ef_section_log *section, struct ef_merge *merge)
{
    uint32_t len = 0, id = 0;

    if (!merge_room(merge, log_id_max(section)))
        return;
    for (uint32_t i = 0; i < section->log_len; i++)
        merge_add(merge, (uint32_t)(section->log[i] >> 32), (uint32_t)section->log[i], 0);
    while (merge_next(merge, &id)) {
        uint64_t count = merge->counts[id];
        merge->counts[id] = 0;
        for (; count > UINT32_MAX; count -= UINT32_MAX)
            section->log[len++] = (uint64_t)id << 32 | UINT32_MAX;
        section->log[len++] = (uint64_t)id << 32 | count;
    }
    section->log_len = len;
}

static void
merge_wide(struct ef_section_log *section, struct ef_merge *merge)
{
    uint32_t len = 0, id = 0;

    if (!merge_room(merge, wide_id_max(section)))
        return;
    for (uint32_t i = 0; i < section->wide_len; i++)
        merge_add(merge, section->wide[i].stack, section->wide[i].count, section->wide[i].value);
    while (merge_next(merge, &id)) {
        section->wide[len++] = (struct ef_block_pair){id, merge->counts[id], merge->values[id]};
        merge->counts[id] = 0;
        merge->values[id] = 0;
    }
    section->wide_len = len;
}

/* ---- buckets ---- */

struct ef_bucket *
ef_bucket_open(uint32_t series_id, int64_t bucket_ns)
{
    struct ef_bucket *bucket = calloc(1, sizeof(*bucket));

    if (bucket == NULL)
        return NULL;
    bucket->series_id = series_id;
    bucket->bucket_ns = bucket_ns;
    bucket->bytes = sizeof(*bucket) + MALLOC_OVERHEAD;
    return bucket;
}

static void
section_fini(struct ef_section_log *section)
{
    free(section->log);
    free(section->wide);
}

void
ef_bucket_free(struct ef_bucket *bucket)
{
    if (bucket == NULL)
        return;
    for (uint32_t i = 0; i < bucket->section_count; i++)
        section_fini(ef_bucket_section(bucket, i));
    free(bucket->more);
    free(bucket->instances.slots);
    free(bucket);
}

/* Both weights are above 0: the larger over the smaller. */
static double
weight_distance(uint64_t a, uint64_t b)
{
    return a > b ? (double)a / (double)b : (double)b / (double)a;
}

static int
nearest_section(struct ef_bucket *bucket, const struct ef_section_key *key)
{
    int best = -1;
    double best_distance = 0;

    for (uint32_t i = 0; i < bucket->section_count; i++) {
        const struct ef_section_key *other = &ef_bucket_section(bucket, i)->key;
        double distance = weight_distance(key->weight_milli, other->weight_milli);
        if (other->stratum == key->stratum && (best < 0 || distance < best_distance)) {
            best = (int)i;
            best_distance = distance;
        }
    }
    return best;
}

static int
add_section(struct ef_bucket *bucket, const struct ef_section_key *key)
{
    if (bucket->section_count > 0) {
        struct ef_section_log *more =
            realloc(bucket->more, bucket->section_count * sizeof(*bucket->more));
        if (more == NULL)
            return -1;
        bucket->more = more;
        bucket->bytes += sizeof(*more);
    }
    *ef_bucket_section(bucket, bucket->section_count) = (struct ef_section_log){.key = *key};
    return (int)bucket->section_count++;
}

int
ef_bucket_find_section(struct ef_bucket *bucket, const struct ef_section_key *key, bool *ret_exact)
{
    uint32_t in_stratum = 0;
    int nearest;

    *ret_exact = true;
    for (uint32_t i = 0; i < bucket->section_count; i++) {
        const struct ef_section_key *other = &ef_bucket_section(bucket, i)->key;
        if (other->stratum != key->stratum)
            continue;
        if (other->weight_milli == key->weight_milli && other->interval == key->interval)
            return (int)i;
        in_stratum++;
    }
    if (in_stratum < SECTIONS_PER_STRATUM_MAX)
        return add_section(bucket, key);
    nearest = nearest_section(bucket, key);
    *ret_exact = ef_bucket_section(bucket, (uint32_t)nearest)->key.interval == key->interval;
    return nearest;
}

static bool
grow(void **array, uint32_t *cap, uint32_t need, size_t item_bytes, size_t *bytes)
{
    uint32_t bigger = *cap == 0 ? LOG_MIN : *cap;
    void *moved;

    /* The log is left at most three quarters full, or it would be merged again at once. */
    while (bigger / 4 * 3 < need) {
        if (bigger > UINT32_MAX / 2)
            return false;
        bigger *= 2;
    }
    if (bigger == *cap)
        return true;
    moved = realloc(*array, bigger * item_bytes);
    if (moved == NULL)
        return false;
    *bytes += (bigger - *cap) * item_bytes + (*cap == 0 ? MALLOC_OVERHEAD : 0);
    *array = moved;
    *cap = bigger;
    return true;
}

static bool
reserve_log(struct ef_bucket *bucket, struct ef_section_log *section, uint32_t count,
            struct ef_merge *merge)
{
    uint64_t need = (uint64_t)section->log_len + section->log_reserved + count;
    void *array = section->log;

    if (need > section->log_cap) {
        if (section->log_len > 0)
            merge_log(section, merge);
        need = (uint64_t)section->log_len + section->log_reserved + count;
        if (need > UINT32_MAX / 2 ||
            !grow(&array, &section->log_cap, (uint32_t)need, sizeof(*section->log), &bucket->bytes))
            return false;
        section->log = array;
    }
    section->log_reserved += count;
    return true;
}

static bool
reserve_wide(struct ef_bucket *bucket, struct ef_section_log *section, uint32_t count,
             struct ef_merge *merge)
{
    uint64_t need = (uint64_t)section->wide_len + section->wide_reserved + count;
    void *array = section->wide;

    if (need > section->wide_cap) {
        if (section->wide_len > 0)
            merge_wide(section, merge);
        need = (uint64_t)section->wide_len + section->wide_reserved + count;
        if (need > UINT32_MAX / 2 || !grow(&array, &section->wide_cap, (uint32_t)need,
                                           sizeof(*section->wide), &bucket->bytes))
            return false;
        section->wide = array;
    }
    section->wide_reserved += count;
    return true;
}

bool
ef_bucket_reserve(struct ef_bucket *bucket, uint32_t section, uint32_t count, bool wide,
                  struct ef_merge *merge)
{
    struct ef_section_log *log = ef_bucket_section(bucket, section);

    return wide ? reserve_wide(bucket, log, count, merge) : reserve_log(bucket, log, count, merge);
}

void
ef_bucket_unreserve(struct ef_bucket *bucket, uint32_t section, uint32_t count, bool wide)
{
    struct ef_section_log *log = ef_bucket_section(bucket, section);

    if (wide)
        log->wide_reserved -= count;
    else
        log->log_reserved -= count;
}

/* ---- instances ---- */

static bool
set_put(struct ef_hash_set *set, uint64_t hash)
{
    uint32_t slot = (uint32_t)(hash >> 32) & (set->slot_count - 1);

    for (; set->slots[slot] != 0; slot = (slot + 1) & (set->slot_count - 1)) {
        if (set->slots[slot] == hash)
            return false;
    }
    set->slots[slot] = hash;
    return true;
}

bool
ef_bucket_reserve_instance(struct ef_bucket *bucket)
{
    struct ef_hash_set *set = &bucket->instances, bigger = *set;

    if (set->count < set->slot_count / 4 * 3 || set->count >= EF_BUCKET_INSTANCES_MAX)
        return true;
    bigger.slot_count = set->slot_count == 0 ? 8 : set->slot_count * 2;
    bigger.slots = calloc(bigger.slot_count, sizeof(*bigger.slots));
    if (bigger.slots == NULL)
        return false;
    for (uint32_t i = 0; i < set->slot_count; i++) {
        if (set->slots[i] != 0)
            set_put(&bigger, set->slots[i]);
    }
    free(set->slots);
    bucket->bytes += (bigger.slot_count - set->slot_count) * sizeof(*bigger.slots) +
                     (set->slot_count == 0 ? MALLOC_OVERHEAD : 0);
    *set = bigger;
    return true;
}

void
ef_bucket_add_instance(struct ef_bucket *bucket, uint64_t instance)
{
    struct ef_hash_set *set = &bucket->instances;

    /* One slot always stays free: several fragments may have reserved room for one instance. */
    if (set->count + 1 < set->slot_count && set_put(set, instance))
        set->count++;
    bucket->totals.instances = set->count;
}

/* ---- encoding ---- */

/* Appends the merged pairs of a section to `pairs`, ids ascending. */
static ef_rc
collect_pairs(const struct ef_section_log *section, struct ef_merge *merge, struct ef_buf *pairs,
              size_t *ret_count, struct ef_err *err)
{
    uint32_t a = log_id_max(section), b = wide_id_max(section), id = 0;
    int64_t interval = (int64_t)section->key.interval;
    size_t count = 0;

    if (!merge_room(merge, a > b ? a : b) ||
        !ef_buf_reserve(pairs, ((size_t)section->log_len + section->wide_len) *
                                   sizeof(struct ef_block_pair)))
        return ef_err_set(err, EF_ENOMEM, "no memory to merge %u pairs",
                          section->log_len + section->wide_len);
    for (uint32_t i = 0; i < section->log_len; i++) {
        uint32_t n = (uint32_t)section->log[i];
        merge_add(merge, (uint32_t)(section->log[i] >> 32), n, (int64_t)n * interval);
    }
    for (uint32_t i = 0; i < section->wide_len; i++)
        merge_add(merge, section->wide[i].stack, section->wide[i].count, section->wide[i].value);
    while (merge_next(merge, &id)) {
        struct ef_block_pair pair = {id, merge->counts[id], merge->values[id]};
        ef_buf_append(pairs, &pair, sizeof(pair));
        merge->counts[id] = 0;
        merge->values[id] = 0;
        count++;
    }
    *ret_count = count;
    return ef_buf_check(pairs, "pairs of a block", err);
}

ef_rc
ef_bucket_encode(const struct ef_bucket *bucket, struct ef_merge *merge, struct ef_buf *pairs,
                 struct ef_buf *out, struct ef_err *err)
{
    struct ef_block_section sections[2 * SECTIONS_PER_STRATUM_MAX];
    size_t starts[2 * SECTIONS_PER_STRATUM_MAX];

    EF_ASSERT(bucket->section_count <= EF_COUNT_OF(sections));
    ef_buf_clear(pairs);
    for (uint32_t i = 0; i < bucket->section_count; i++) {
        const struct ef_section_log *section = i == 0 ? &bucket->first : &bucket->more[i - 1];
        ef_rc rc;
        starts[i] = pairs->len;
        sections[i] = (struct ef_block_section){section->key.stratum, section->key.weight_milli,
                                                section->key.interval, NULL, 0};
        rc = collect_pairs(section, merge, pairs, &sections[i].pair_count, err);
        if (rc != EF_OK)
            return rc;
    }
    for (uint32_t i = 0; i < bucket->section_count; i++)
        sections[i].pairs = (const struct ef_block_pair *)(const void *)(pairs->data + starts[i]);
    return ef_block_encode(sections, bucket->section_count, out, err);
}
