/*
 * Decides probing and growth. Any thread, one at a time per map.
 */
#include "proto/base/map.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t
ef_hash(const void *data, size_t len)
{
    uint64_t hash = XXH3_64bits(data, len);

    return hash != 0 ? hash : 1;
}

static size_t
slot_of(const struct ef_map *map, uint64_t key)
{
    return (size_t)((key ^ (key >> 32)) * UINT64_C(0x9e3779b97f4a7c15) >> 20) &
           (map->slot_count - 1);
}

void
ef_map_init(struct ef_map *map, size_t count_max)
{
    *map = (struct ef_map){.count_max = count_max};
}

void
ef_map_fini(struct ef_map *map)
{
    free(map->slots);
    free(map->used);
    *map = (struct ef_map){.count_max = map->count_max};
}

void
ef_map_clear(struct ef_map *map)
{
    if (map->slot_count > 0)
        memset(map->used, 0, map->slot_count);
    map->count = 0;
}

size_t
ef_map_bytes(const struct ef_map *map)
{
    return map->slot_count * (sizeof(struct ef_map_slot) + 1);
}

uint64_t *
ef_map_get(const struct ef_map *map, uint64_t key)
{
    if (map->count == 0)
        return NULL;
    for (size_t i = slot_of(map, key); map->used[i]; i = (i + 1) & (map->slot_count - 1)) {
        if (map->slots[i].key == key)
            return &map->slots[i].value;
    }
    return NULL;
}

static bool
grow(struct ef_map *map)
{
    struct ef_map bigger = *map;

    bigger.slot_count = map->slot_count == 0 ? 16 : map->slot_count * 2;
    bigger.slots = malloc(bigger.slot_count * sizeof(*bigger.slots));
    bigger.used = calloc(bigger.slot_count, 1);
    if (bigger.slots == NULL || bigger.used == NULL) {
        free(bigger.slots);
        free(bigger.used);
        return false;
    }
    for (size_t i = 0; i < map->slot_count; i++) {
        size_t to;
        if (!map->used[i])
            continue;
        for (to = slot_of(&bigger, map->slots[i].key); bigger.used[to];
             to = (to + 1) & (bigger.slot_count - 1))
            ;
        bigger.used[to] = 1;
        bigger.slots[to] = map->slots[i];
    }
    free(map->slots);
    free(map->used);
    map->slots = bigger.slots;
    map->used = bigger.used;
    map->slot_count = bigger.slot_count;
    return true;
}

uint64_t *
ef_map_upsert(struct ef_map *map, uint64_t key, bool *ret_new)
{
    uint64_t *found = ef_map_get(map, key);
    size_t i;

    *ret_new = false;
    if (found != NULL)
        return found;
    if (map->count >= map->count_max)
        return NULL;
    if (map->count >= map->slot_count - map->slot_count / 8 && !grow(map))
        return NULL;
    for (i = slot_of(map, key); map->used[i]; i = (i + 1) & (map->slot_count - 1))
        ;
    map->used[i] = 1;
    map->slots[i] = (struct ef_map_slot){key, 0};
    map->count++;
    *ret_new = true;
    return &map->slots[i].value;
}

bool
ef_map_remove(struct ef_map *map, uint64_t key)
{
    size_t mask = map->slot_count - 1, hole, i;
    uint64_t *found = ef_map_get(map, key);

    if (found == NULL)
        return false;
    hole = (size_t)((struct ef_map_slot *)((char *)found - offsetof(struct ef_map_slot, value)) -
                    map->slots);
    /* Move later members of the run back, so that no search stops too early. */
    for (i = (hole + 1) & mask; map->used[i]; i = (i + 1) & mask) {
        size_t home = slot_of(map, map->slots[i].key);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            map->slots[hole] = map->slots[i];
            hole = i;
        }
    }
    map->used[hole] = 0;
    map->count--;
    return true;
}

bool
ef_map_next(const struct ef_map *map, size_t *index, uint64_t *ret_key, uint64_t *ret_value)
{
    for (; *index < map->slot_count; (*index)++) {
        if (map->used[*index]) {
            *ret_key = map->slots[*index].key;
            *ret_value = map->slots[*index].value;
            (*index)++;
            return true;
        }
    }
    return false;
}
