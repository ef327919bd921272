/*
 * Arithmetic on numbers from outside: each helper returns false instead of wrapping around and
 * leaves *ret untouched then.
 */
#ifndef PROTO_BASE_LIMIT_H
#define PROTO_BASE_LIMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool
ef_add_size(size_t a, size_t b, size_t *ret)
{
    size_t sum;

    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

static inline bool
ef_mul_size(size_t a, size_t b, size_t *ret)
{
    size_t product;

    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

static inline bool
ef_add_i64(int64_t a, int64_t b, int64_t *ret)
{
    int64_t sum;

    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

static inline bool
ef_mul_i64(int64_t a, int64_t b, int64_t *ret)
{
    int64_t product;

    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

/* Sum that stays at the largest value instead of wrapping; for counters shown to people. */
static inline uint64_t
ef_sat_add_u64(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
