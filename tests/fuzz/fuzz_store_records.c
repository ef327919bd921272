/*
 * Any bytes as a stored value: reading ends in a record or EF_ECORRUPT, and a record that was read
 * is written to the same meaning. The first byte says which record the rest is. Single thread.
 */
#include <stdint.h>
#include <string.h>

#include "storage/rocksdb/records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void
try_version(const uint8_t *data, size_t len, struct ef_buf *out)
{
    struct ef_store_version a, b;

    if (ef_record_read_version(data, len, &a, NULL) != EF_OK)
        return;
    ef_record_write_version(out, &a);
    EF_ASSERT(ef_record_read_version(out->data, out->len, &b, NULL) == EF_OK);
    EF_ASSERT(a.created_ns == b.created_ns && strcmp(a.version, b.version) == 0);
}

static void
try_series(const uint8_t *data, size_t len, struct ef_buf *out)
{
    struct ef_store_series a, b;

    if (ef_record_read_series(data, len, &a, NULL) != EF_OK)
        return;
    ef_record_write_series(out, &a);
    EF_ASSERT(ef_record_read_series(out->data, out->len, &b, NULL) == EF_OK);
    EF_ASSERT(a.version_id == b.version_id && strcmp(a.region, b.region) == 0);
}

static void
try_totals(const uint8_t *data, size_t len, struct ef_buf *out)
{
    struct ef_store_totals a, b;

    if (ef_record_read_totals(data, len, &a, NULL) != EF_OK)
        return;
    ef_record_write_totals(out, &a);
    EF_ASSERT(ef_record_read_totals(out->data, out->len, &b, NULL) == EF_OK);
    EF_ASSERT(memcmp(&a, &b, sizeof(a)) == 0);
}

static void
try_ack(const uint8_t *data, size_t len, struct ef_buf *out)
{
    static const uint8_t key[24] = {1, 2, 3};
    static struct ef_store_ack a, b;

    if (ef_record_read_ack(key, sizeof(key), data, len, &a, NULL) != EF_OK)
        return;
    ef_record_write_ack(out, &a);
    EF_ASSERT(ef_record_read_ack(key, sizeof(key), out->data, out->len, &b, NULL) == EF_OK);
    EF_ASSERT(memcmp(&a, &b, sizeof(a)) == 0);
}

static void
try_functions(const uint8_t *data, size_t len, struct ef_buf *out)
{
    struct ef_store_function function;
    struct ef_run run;
    uint32_t last_id = 5;

    if (ef_run_begin(&run, 5, data, len, NULL) != EF_OK)
        return;
    while (ef_run_more(&run) && ef_run_function(&run, &function, NULL) == EF_OK) {
        EF_ASSERT(function.id >= last_id);
        ef_record_write_function(out, last_id, &function);
        last_id = function.id;
    }
}

static void
try_stacks(const uint8_t *data, size_t len, struct ef_buf *out)
{
    struct ef_store_stack stack;
    struct ef_run run;
    uint32_t last_id = 5;

    if (ef_run_begin(&run, 5, data, len, NULL) != EF_OK)
        return;
    while (ef_run_more(&run) && ef_run_stack(&run, &stack, NULL) == EF_OK) {
        EF_ASSERT(stack.id >= last_id && stack.parent < stack.id);
        ef_record_write_stack(out, last_id, &stack);
        last_id = stack.id;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    void (*const tries[])(const uint8_t *, size_t, struct ef_buf *) = {
        try_version, try_series, try_totals, try_ack, try_functions, try_stacks};
    struct ef_buf out;

    if (len == 0)
        return 0;
    ef_buf_init(&out, 64u << 20);
    tries[data[0] % EF_COUNT_OF(tries)](data + 1, len - 1, &out);
    ef_buf_fini(&out);
    return 0;
}
