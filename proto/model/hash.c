/*
 * Decides the byte form that content hashes are taken of. Any thread.
 */
#include "proto/model/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static void
le32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static void
le64(uint8_t *bytes, uint64_t value)
{
    le32(bytes, (uint32_t)value);
    le32(bytes + 4, (uint32_t)(value >> 32));
}

uint64_t
ef_function_hash(const char *name, size_t name_len, const char *file, size_t file_len,
                 uint32_t start_line)
{
    XXH3_state_t state;
    uint8_t number[4];
    uint64_t hash;

    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    le32(number, (uint32_t)name_len);
    XXH3_64bits_update(&state, number, 4);
    XXH3_64bits_update(&state, name, name_len);
    le32(number, (uint32_t)file_len);
    XXH3_64bits_update(&state, number, 4);
    XXH3_64bits_update(&state, file, file_len);
    le32(number, start_line);
    XXH3_64bits_update(&state, number, 4);
    hash = XXH3_64bits_digest(&state);
    return hash != 0 ? hash : 1;
}

uint64_t
ef_stack_hash(uint64_t parent, uint64_t function, uint32_t line)
{
    uint8_t bytes[20];
    uint64_t hash;

    le64(bytes, parent);
    le64(bytes + 8, function);
    le32(bytes + 16, line);
    hash = XXH3_64bits(bytes, sizeof(bytes));
    return hash != 0 ? hash : 1;
}
