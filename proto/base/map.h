/*
 * Hash map from a 64-bit key to a 64-bit value, open addressing with linear probing, at most 7/8
 * full, with a maximum number of entries given at birth. Keys may be any number (0 too). For keys
 * that are content hashes no further hashing is needed, but small integers are mixed too, so any
 * key distribution is fine. Not thread-safe.
 */
#ifndef PROTO_BASE_MAP_H
#define PROTO_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_map_slot {
    uint64_t key;
    uint64_t value;
};

struct ef_map {
    struct ef_map_slot *slots;
    uint8_t *used;     /* one byte per slot: 0 free, 1 taken */
    size_t slot_count; /* power of two or 0 */
    size_t count;
    size_t count_max;
};

void ef_map_init(struct ef_map *map, size_t count_max);
void ef_map_fini(struct ef_map *map);
void ef_map_clear(struct ef_map *map); /* keeps the memory */
/* Pointer to the value, or NULL. Valid until the next insert. */
uint64_t *ef_map_get(const struct ef_map *map, uint64_t key);
/*
 * Pointer to the value of the key, a new one being 0; *ret_new says whether it is new. NULL when
 * the maximum is reached or memory ran out (nothing changed then).
 */
uint64_t *ef_map_upsert(struct ef_map *map, uint64_t key, bool *ret_new);
bool ef_map_remove(struct ef_map *map, uint64_t key);
size_t ef_map_bytes(const struct ef_map *map); /* memory it holds */

/* Iterates in no order: for (size_t i = 0; ef_map_next(map, &i, &key, &value);) */
bool ef_map_next(const struct ef_map *map, size_t *index, uint64_t *ret_key, uint64_t *ret_value);

/* XXH3 of bytes; the content hash of the wire is built from it (proto/model). Never 0. */
uint64_t ef_hash(const void *data, size_t len);

#endif
