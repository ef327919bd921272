/*
 * Content hashes that publisher and collector must compute alike; they are part of the wire format
 * and of the store. Pure functions, any thread.
 */
#ifndef PROTO_MODEL_HASH_H
#define PROTO_MODEL_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * XXH3-64 of: le32 name length, name, le32 file length, file, le32 start line. Never 0.
 */
uint64_t ef_function_hash(const char *name, size_t name_len, const char *file, size_t file_len,
                          uint32_t start_line);
/* XXH3-64 of: le64 parent, le64 function, le32 line. Never 0. A parent of 0 is the root. */
uint64_t ef_stack_hash(uint64_t parent, uint64_t function, uint32_t line);

/* Reserved stacks that every version has: a function of this name, no file, line 0, called by
 * nobody. */
#define EF_STACK_LIMIT_NAME "(limit reached)"
#define EF_STACK_UNKNOWN_NAME "(unknown stack)"

#endif
