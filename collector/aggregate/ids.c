/*
 * Decides probing and growth. Must not know what the hashes stand for. Any thread, one at a time.
 */
#include "collector/aggregate/ids.h"

#include <stdlib.h>

#define SLOTS_MIN 64u       /* chosen: a version has dozens of stacks at least */
#define MALLOC_OVERHEAD 16u /* glibc keeps this much beside each piece */

_Static_assert(sizeof(struct ef_ids_slot) == 12, "a slot must not be padded");

/* Any number of slots will do, not only powers of two, so that tables grow by halves. */
static inline uint32_t
home_of(const struct ef_ids *ids, uint64_t hash)
{
    uint64_t mixed = hash * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)((mixed >> 32) * ids->slot_count >> 32);
}

static inline uint64_t
hash_of(const struct ef_ids_slot *slot)
{
    return (uint64_t)slot->hash[1] << 32 | slot->hash[0];
}

static inline uint32_t
next_of(const struct ef_ids *ids, uint32_t at)
{
    return at + 1 == ids->slot_count ? 0 : at + 1;
}

void
ef_ids_fini(struct ef_ids *ids)
{
    free(ids->slots);
    *ids = (struct ef_ids){0};
}

size_t
ef_ids_bytes(const struct ef_ids *ids)
{
    return ids->slot_count == 0 ? 0 : ids->slot_count * sizeof(*ids->slots) + MALLOC_OVERHEAD;
}

static inline uint32_t
probe(const struct ef_ids *ids, uint64_t hash)
{
    for (uint32_t at = home_of(ids, hash); ids->slots[at].id != 0; at = next_of(ids, at)) {
        if (hash_of(&ids->slots[at]) == hash)
            return ids->slots[at].id;
    }
    return 0;
}

uint32_t
ef_ids_find(const struct ef_ids *ids, uint64_t hash)
{
    return ids->count == 0 ? 0 : probe(ids, hash);
}

void
ef_ids_fetch(const struct ef_ids *ids, const uint64_t *hashes, size_t count)
{
    if (ids->count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(&ids->slots[home_of(ids, hashes[i])]);
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
    uint32_t at = home_of(ids, hash);

    while (ids->slots[at].id != 0)
        at = next_of(ids, at);
    ids->slots[at] = (struct ef_ids_slot){{(uint32_t)hash, (uint32_t)(hash >> 32)}, id};
}

static bool
grow(struct ef_ids *ids)
{
    struct ef_ids bigger = {.count = ids->count};

    bigger.slot_count = ids->slot_count == 0 ? SLOTS_MIN : ids->slot_count + ids->slot_count / 2;
    bigger.slots = calloc(bigger.slot_count, sizeof(*bigger.slots));
    if (bigger.slots == NULL)
        return false;
    for (uint32_t i = 0; i < ids->slot_count; i++) {
        if (ids->slots[i].id != 0)
            insert(&bigger, hash_of(&ids->slots[i]), ids->slots[i].id);
    }
    free(ids->slots);
    *ids = bigger;
    return true;
}

uint32_t
ef_ids_add(struct ef_ids *ids, uint64_t hash)
{
    if (ids->count >= UINT32_MAX / 4)
        return 0;
    if (ids->count >= ids->slot_count / 5 * 4 && !grow(ids))
        return 0;
    insert(ids, hash, ++ids->count);
    return ids->count;
}
