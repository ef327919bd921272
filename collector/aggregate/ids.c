/*
 * Decides probing and growth. Must not know what the hashes stand for. Any thread, one at a time.
 */
#include "collector/aggregate/ids.h"

#include <stdlib.h>

#define IDS_MIN 32u         /* entries of the first array; chosen: a version has dozens at least */
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

void
ef_ids_fetch(const struct ef_ids *ids, const uint64_t *hashes, size_t count, bool far)
{
    if (ids->count == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        const uint32_t *slot = &ids->slots[slot_of(ids, hashes[i])];
        if (far)
            __builtin_prefetch(slot);
        else
            __builtin_prefetch(&ids->hashes[*slot == 0 ? 0 : *slot - 1]);
    }
}

size_t
ef_ids_find_many(const struct ef_ids *ids, const uint64_t *hashes, size_t count, uint32_t *ret_ids)
{
    size_t unknown = 0;

    for (size_t i = 0; i < count; i++) {
        ret_ids[i] = ef_ids_find(ids, hashes[i]);
        unknown += ret_ids[i] == 0;
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
