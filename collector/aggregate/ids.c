/*
 * Decides probing and growth. Must not know what the hashes stand for. Any thread, one at a time.
 */
#include "collector/aggregate/ids.h"

#include <stdlib.h>

#define IDS_MIN 32u         /* entries of the first array; chosen: a version has dozens at least */
#define FIND_CHUNK 32u      /* lookups in flight; more than the ~16 misses a core keeps open */
#define MALLOC_OVERHEAD 16u /* glibc keeps this much beside each piece */

static inline uint32_t
slot_of(const struct ef_ids *ids, uint64_t hash)
{
    return (uint32_t)((hash * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (ids->slot_count - 1);
}

void
ef_ids_fini(struct ef_ids *ids)
{
    free(ids->hashes);
    free(ids->slots);
    *ids = (struct ef_ids){0};
}

size_t
ef_ids_bytes(const struct ef_ids *ids)
{
    if (ids->cap == 0)
        return 0;
    return ids->cap * sizeof(*ids->hashes) + ids->slot_count * sizeof(*ids->slots) +
           2 * MALLOC_OVERHEAD;
}

static inline uint32_t
probe(const struct ef_ids *ids, uint64_t hash, uint32_t slot)
{
    for (; ids->slots[slot] != 0; slot = (slot + 1) & (ids->slot_count - 1)) {
        if (ids->hashes[ids->slots[slot] - 1] == hash)
            return ids->slots[slot];
    }
    return 0;
}

uint32_t
ef_ids_find(const struct ef_ids *ids, uint64_t hash)
{
    return ids->count == 0 ? 0 : probe(ids, hash, slot_of(ids, hash));
}

static size_t
find_chunk(const struct ef_ids *ids, const uint64_t *hashes, size_t count, uint32_t *ret_ids)
{
    uint32_t slots[FIND_CHUNK];
    size_t unknown = 0;

    for (size_t i = 0; i < count; i++) {
        slots[i] = slot_of(ids, hashes[i]);
        __builtin_prefetch(&ids->slots[slots[i]]);
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t id = ids->slots[slots[i]];
        __builtin_prefetch(&ids->hashes[id == 0 ? 0 : id - 1]);
    }
    for (size_t i = 0; i < count; i++) {
        ret_ids[i] = probe(ids, hashes[i], slots[i]);
        unknown += ret_ids[i] == 0;
    }
    return unknown;
}

size_t
ef_ids_find_many(const struct ef_ids *ids, const uint64_t *hashes, size_t count, uint32_t *ret_ids)
{
    size_t unknown = 0;

    for (size_t i = 0; i < count; i += FIND_CHUNK) {
        size_t chunk = count - i < FIND_CHUNK ? count - i : FIND_CHUNK;
        if (ids->count > 0) {
            unknown += find_chunk(ids, hashes + i, chunk, ret_ids + i);
            continue;
        }
        for (size_t k = 0; k < chunk; k++)
            ret_ids[i + k] = 0;
        unknown += chunk;
    }
    return unknown;
}

static void
insert(struct ef_ids *ids, uint64_t hash, uint32_t id)
{
    uint32_t slot = slot_of(ids, hash);

    while (ids->slots[slot] != 0)
        slot = (slot + 1) & (ids->slot_count - 1);
    ids->slots[slot] = id;
}

static bool
grow_hashes(struct ef_ids *ids)
{
    uint32_t cap = ids->cap == 0 ? IDS_MIN : ids->cap + ids->cap / 4;
    uint64_t *bigger = realloc(ids->hashes, cap * sizeof(*bigger));

    if (bigger == NULL)
        return false;
    ids->hashes = bigger;
    ids->cap = cap;
    return true;
}

static bool
grow_slots(struct ef_ids *ids)
{
    uint32_t slot_count = ids->slot_count == 0 ? 2 * IDS_MIN : ids->slot_count * 2;
    uint32_t *bigger = calloc(slot_count, sizeof(*bigger));

    if (bigger == NULL)
        return false;
    free(ids->slots);
    ids->slots = bigger;
    ids->slot_count = slot_count;
    for (uint32_t id = 1; id <= ids->count; id++)
        insert(ids, ids->hashes[id - 1], id);
    return true;
}

uint32_t
ef_ids_add(struct ef_ids *ids, uint64_t hash)
{
    if (ids->count >= UINT32_MAX / 4)
        return 0;
    if (ids->count >= ids->cap && !grow_hashes(ids))
        return 0;
    if (ids->count >= ids->slot_count / 4 * 3 && !grow_slots(ids))
        return 0;
    ids->hashes[ids->count++] = hash;
    insert(ids, hash, ids->count);
    return ids->count;
}
