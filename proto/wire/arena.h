/*
 * Memory for one decoded message: protobuf-c asks for every array, string and sub-message one by
 * one, here they come from a chunk that is kept between decodes.
 *
 * Invariants: bytes_used <= bytes_max, so hostile input (empty sub-messages cost 64 times their
 * wire size, research of protobuf-c 1.4.1) cannot make us allocate more than the cap. Each piece
 * carries its size before it: protobuf-c gives text as char * without length, and only the size
 * tells whether a NUL byte was inside. Nothing is freed one by one. One thread.
 */
#ifndef PROTO_WIRE_ARENA_H
#define PROTO_WIRE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct ef_wire_arena_chunk;

enum ef_wire_arena_state { EF_WIRE_ARENA_GOOD, EF_WIRE_ARENA_CAPPED, EF_WIRE_ARENA_NO_MEMORY };

struct ef_wire_arena {
    ProtobufCAllocator allocator; /* its data pointer is the arena: init in place, do not move */
    struct ef_wire_arena_chunk *chunk; /* the one in use, then the full ones */
    uint8_t *at, *end;                 /* free part of the chunk */
    size_t bytes_used;
    size_t bytes_max;
    uint64_t allocations;
    uint64_t fail_at; /* fault tests: this allocation of a decode fails, counted from 1; 0 = none */
    enum ef_wire_arena_state failed; /* why an allocation was refused */
};

void ef_wire_arena_init(struct ef_wire_arena *arena);
void ef_wire_arena_fini(struct ef_wire_arena *arena);
/* Forgets all pieces, keeps one chunk of at most 1 MiB, and sets the cap of the next decode. */
void ef_wire_arena_reset(struct ef_wire_arena *arena, size_t bytes_max);

/* Bytes that were asked for when `piece` was allocated. Only for pieces of an arena. */
static inline size_t
ef_wire_arena_size(const void *piece)
{
    return (size_t)((const uint64_t *)piece)[-1];
}

#endif
