/*
 * Content hashes of one worker version to dense ids 1, 2, 3 … in order of arrival.
 *
 * Invariants: at most four fifths of the slots are taken; an id of 0 marks a free one. Hash and id
 * lie together: with 200 versions of 5,000 stacks nearly every lookup misses the cache, and two
 * arrays (hashes by id, slots of ids) missed it twice. 15 to 22 bytes an entry, against 20 to 39 of
 * ef_map: this is most of the collector's memory. Not thread-safe.
 */
#ifndef COLLECTOR_AGGREGATE_IDS_H
#define COLLECTOR_AGGREGATE_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_ids_slot {
    uint32_t hash[2]; /* low and high half: 12 bytes without padding */
    uint32_t id;
};

struct ef_ids {
    struct ef_ids_slot *slots;
    uint32_t slot_count;
    uint32_t count;
};

void ef_ids_fini(struct ef_ids *ids);
/* 0 = not there. */
uint32_t ef_ids_find(const struct ef_ids *ids, uint64_t hash);
/* Begins to fetch what looking these up will touch: for a few hundred at a time the cache misses
 * overlap. */
void ef_ids_fetch(const struct ef_ids *ids, const uint64_t *hashes, size_t count);
/* Looks many up. Gives how many are not there (id 0). */
size_t ef_ids_find_many(const struct ef_ids *ids, const uint64_t *hashes, size_t count,
                        uint32_t *ret_ids);
/* Gives the next id to a hash that is not there yet; 0 = no memory, nothing changed. */
uint32_t ef_ids_add(struct ef_ids *ids, uint64_t hash);
size_t ef_ids_bytes(const struct ef_ids *ids);

#endif
