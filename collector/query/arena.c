/*
 * Decides how the memory of one query is had and bounded. Knows nothing of what is kept in it. One
 * thread at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"
#include "proto/base/limit.h"

/* A chunk holds many small pieces; a larger piece gets a chunk of its own. Chosen: 64 KiB is below
 * malloc's mmap threshold, so small queries stay off the kernel. */
#define CHUNK_BYTES 65536u
#define ALIGN 16u

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(ALIGN) uint8_t bytes[];
};

struct ef_query_arena {
    struct chunk *chunks; /* the first one is filled */
    uint64_t bytes, bytes_max;
};

struct ef_query_arena *
ef_query_arena_open(uint64_t bytes_max)
{
    struct ef_query_arena *arena = calloc(1, sizeof(*arena));

    if (arena != NULL)
        arena->bytes_max = bytes_max;
    return arena;
}

void
ef_query_arena_free(struct ef_query_arena *arena)
{
    if (arena == NULL)
        return;
    while (arena->chunks != NULL) {
        struct chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    free(arena);
}

uint64_t
ef_query_arena_left(const struct ef_query_arena *arena)
{
    return arena->bytes < arena->bytes_max ? arena->bytes_max - arena->bytes : 0;
}

static struct chunk *
chunk_add(struct ef_query_arena *arena, size_t size)
{
    struct chunk *chunk;

    if (size > ef_query_arena_left(arena))
        return NULL;
    chunk = calloc(1, sizeof(*chunk) + size);
    if (chunk == NULL)
        return NULL;
    chunk->size = size;
    arena->bytes += size;
    return chunk;
}

void *
ef_query_arena_take(struct ef_query_arena *arena, size_t count, size_t size)
{
    struct chunk *chunk = arena->chunks;
    size_t bytes;

    if (!ef_mul_size(count, size, &bytes) || !ef_add_size(bytes, ALIGN - 1, &bytes))
        return NULL;
    bytes &= ~(size_t)(ALIGN - 1);
    if (chunk == NULL || bytes > chunk->size - chunk->used) {
        bool own = bytes > CHUNK_BYTES / 4;
        chunk = chunk_add(arena, own ? bytes : CHUNK_BYTES);
        if (chunk == NULL)
            return NULL;
        if (own && arena->chunks != NULL) { /* behind the one that still has room */
            chunk->next = arena->chunks->next;
            arena->chunks->next = chunk;
        } else {
            chunk->next = arena->chunks;
            arena->chunks = chunk;
        }
    }
    chunk->used += bytes;
    return chunk->bytes + chunk->used - bytes;
}

char *
ef_query_arena_str(struct ef_query_arena *arena, const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = ef_query_arena_take(arena, len, 1);

    if (copy != NULL)
        memcpy(copy, text, len);
    return copy;
}
