/*
 * Content hashes of one worker version to dense ids 1, 2, 3 … in order of arrival.
 *
 * Invariants: hashes[id - 1] is the hash of id; slots hold ids, 0 = free, at most three quarters
 * full. Two arrays instead of ef_map: 12 to 16 bytes an entry instead of 20 to 39, and with 200
 * versions of 5,000 stacks this is most of the collector's memory. Not thread-safe.
 */
#ifndef COLLECTOR_AGGREGATE_IDS_H
#define COLLECTOR_AGGREGATE_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_ids {
    uint64_t *hashes;
    uint32_t *slots;
    uint32_t count;
    uint32_t cap;
    uint32_t slot_count; /* power of two or 0 */
};

void ef_ids_fini(struct ef_ids *ids);
/* 0 = not there. */
uint32_t ef_ids_find(const struct ef_ids *ids, uint64_t hash);
/*
 * Begins to fetch what looking these up will touch: first with `far`, later without. A lookup
 * misses the cache twice, and with 200 versions nearly always; fetched for a few hundred lookups at
 * a time the misses overlap (measured: find_many was a fifth of ingest's CPU, now a tenth).
 */
void ef_ids_fetch(const struct ef_ids *ids, const uint64_t *hashes, size_t count, bool far);
/* Looks many up. Gives how many are not there (id 0). */
size_t ef_ids_find_many(const struct ef_ids *ids, const uint64_t *hashes, size_t count,
                        uint32_t *ret_ids);
/* Gives the next id to a hash that is not there yet; 0 = no memory, nothing changed. */
uint32_t ef_ids_add(struct ef_ids *ids, uint64_t hash);
size_t ef_ids_bytes(const struct ef_ids *ids);

#endif
