/*
 * Decides chunk sizes and the cap. Must not know what is decoded. The decoding thread.
 */
#include "proto/wire/arena.h"

#include <stdlib.h>

#define CHUNK_BYTES_MIN 32768u /* holds an everyday batch (4 kB on the wire, 7 to 9 times that) */
#define CHUNK_BYTES_KEPT_MAX 1048576u /* chosen: one large batch must not keep 64 MiB for ever */

struct ef_wire_arena_chunk {
    struct ef_wire_arena_chunk *next;
    size_t bytes; /* behind this struct */
};

static uint8_t *
chunk_data(struct ef_wire_arena_chunk *chunk)
{
    return (uint8_t *)(chunk + 1);
}

static int
add_chunk(struct ef_wire_arena *arena, size_t bytes_min)
{
    size_t bytes = arena->chunk != NULL ? arena->chunk->bytes * 2 : CHUNK_BYTES_MIN;
    struct ef_wire_arena_chunk *chunk;

    if (bytes > arena->bytes_max)
        bytes = arena->bytes_max; /* more can never be used */
    if (bytes < bytes_min)
        bytes = bytes_min;
    chunk = malloc(sizeof(*chunk) + bytes);
    if (chunk == NULL)
        return 0;
    chunk->next = arena->chunk;
    chunk->bytes = bytes;
    arena->chunk = chunk;
    arena->at = chunk_data(chunk);
    arena->end = arena->at + bytes;
    return 1;
}

static void *
allocate(void *data, size_t bytes)
{
    struct ef_wire_arena *arena = data;
    size_t need = sizeof(uint64_t) + ((bytes + 7) & ~(size_t)7);
    uint64_t *piece;

    if (bytes > arena->bytes_max || need > arena->bytes_max - arena->bytes_used) {
        arena->failed = EF_WIRE_ARENA_CAPPED;
        return NULL;
    }
    if (++arena->allocations == arena->fail_at ||
        (need > (size_t)(arena->end - arena->at) && !add_chunk(arena, need))) {
        arena->failed = EF_WIRE_ARENA_NO_MEMORY;
        return NULL;
    }
    piece = (uint64_t *)(void *)arena->at;
    arena->at += need;
    arena->bytes_used += need;
    piece[0] = bytes;
    return piece + 1;
}

static void
release(void *data, void *piece)
{
    (void)data;
    (void)piece; /* the next reset forgets it */
}

void
ef_wire_arena_init(struct ef_wire_arena *arena)
{
    *arena = (struct ef_wire_arena){.allocator = {allocate, release, arena}};
}

static void
free_chunks(struct ef_wire_arena_chunk *chunk)
{
    while (chunk != NULL) {
        struct ef_wire_arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

void
ef_wire_arena_fini(struct ef_wire_arena *arena)
{
    free_chunks(arena->chunk);
    ef_wire_arena_init(arena);
}

void
ef_wire_arena_reset(struct ef_wire_arena *arena, size_t bytes_max)
{
    struct ef_wire_arena_chunk *kept = arena->chunk; /* the newest is the largest */

    if (kept != NULL && kept->bytes > CHUNK_BYTES_KEPT_MAX) {
        free_chunks(kept);
        kept = NULL;
    }
    if (kept != NULL) {
        free_chunks(kept->next);
        kept->next = NULL;
    }
    arena->chunk = kept;
    arena->at = kept != NULL ? chunk_data(kept) : NULL;
    arena->end = kept != NULL ? arena->at + kept->bytes : NULL;
    arena->bytes_used = 0;
    arena->bytes_max = bytes_max;
    arena->allocations = 0;
    arena->failed = EF_WIRE_ARENA_GOOD;
}
