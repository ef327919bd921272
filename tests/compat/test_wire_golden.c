/*
 * A batch of each released version of the wire format still reads, field by field.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/wire.h"
#include "tests/support/wire_sample.h"

static void
check_sources(const Everflame__V1__Batch *batch)
{
    assert_int_equal(batch->n_sources, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(batch->sources[i]->account, "acme");
        assert_string_equal(batch->sources[i]->worker, "checkout");
        assert_string_equal(batch->sources[i]->version, "v41");
        assert_string_equal(batch->sources[i]->instance, i == 0 ? "pid:100:1" : "pid:100:2");
        assert_string_equal(batch->sources[i]->host, "host-1");
        assert_string_equal(batch->sources[i]->region, "fra");
        assert_string_equal(batch->sources[i]->runtime, "workerd");
        assert_int_equal(batch->sources[i]->n_label_names, i == 0 ? 0 : 2);
    }
    assert_string_equal(batch->sources[1]->label_names[0], "tier");
    assert_string_equal(batch->sources[1]->label_values[0], "gold");
    assert_string_equal(batch->sources[1]->label_names[1], "größe");
    assert_string_equal(batch->sources[1]->label_values[1], "");
}

static void
check_definitions(const Everflame__V1__Batch *batch)
{
    static const char *const names[3] = {"handle", "parseJSON", ""};
    static const char *const files[3] = {"worker.js", "lib/json.js", ""};
    static const uint64_t parents[3] = {0, 0x2000, 0x2001};
    const Everflame__V1__Definitions *definitions;

    assert_int_equal(batch->n_definitions, 1);
    definitions = batch->definitions[0];
    assert_int_equal(definitions->source, 0);
    assert_int_equal(definitions->n_function_hash, 3);
    assert_int_equal(definitions->n_stack_hash, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(definitions->function_hash[i], 0x1000 + i);
        assert_string_equal(definitions->function_name[i], names[i]);
        assert_string_equal(definitions->function_file[i], files[i]);
        assert_int_equal(definitions->function_line[i], 10 * i);
        assert_int_equal(definitions->stack_hash[i], 0x2000 + i);
        assert_int_equal(definitions->stack_parent[i], parents[i]);
        assert_int_equal(definitions->stack_function[i], 0x1000 + i);
        assert_int_equal(definitions->stack_line[i], 10 * i + 5);
    }
}

static void
check_fragment(const Everflame__V1__Fragment *fragment, int i)
{
    assert_int_equal(fragment->source, i);
    assert_int_equal(fragment->profile_type, i == 0 ? 1 : 2);
    assert_int_equal(fragment->stratum, i == 0 ? 1 : 0);
    assert_int_equal(fragment->start_ns, INT64_C(1764590000000000000) + i);
    assert_int_equal(fragment->span_ns, INT64_C(10000000000));
    assert_int_equal(fragment->interval, i == 0 ? 50000000 : 524288);
    assert_int_equal(fragment->interval_measured, i == 0 ? 50001000 : 525288);
    assert_int_equal(fragment->weight_milli, 1250);
    assert_int_equal(fragment->n_stack, 3);
    assert_int_equal(fragment->n_value, i == 0 ? 0 : 3);
    assert_int_equal(fragment->n_tick_ms, i == 0 ? 6 : 0);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(fragment->stack[k], 0x2000 + k);
        assert_int_equal(fragment->count[k], k + 1);
        if (i == 1)
            assert_int_equal(fragment->value[k], 1000 * (k + 1));
    }
    for (int k = 0; i == 0 && k < 6; k++)
        assert_int_equal(fragment->tick_ms[k], 100 * k);
    assert_int_equal(fragment->heap_used_bytes, 50000000);
    assert_int_equal(fragment->heap_limit_bytes, 134217728);
    assert_int_equal(fragment->pause_ns, 35000000);
}

static void
version_1_reads_field_by_field(void **state)
{
    char *folder = ef_test_tmpdir();
    struct ef_wire_keys *keys = ef_wire_sample_keys(folder, 7, 0x5a);
    struct ef_wire_reader *reader = NULL;
    struct ef_wire_header header;
    const ProtobufCMessage *message = NULL;
    const Everflame__V1__Batch *batch;
    struct ef_err err = {0};
    size_t len;
    uint8_t *data = ef_test_read_file("wire/v1.bin", &len);

    (void)state;
    assert_int_equal(ef_wire_reader_open(keys, &reader, &err), EF_OK);
    if (ef_wire_decode(reader, EF_WIRE_BATCH, data, len, &header, &message, &err) != EF_OK)
        fail_msg("%s", err.msg);
    batch = (const Everflame__V1__Batch *)message;
    assert_memory_equal(data, "EFW1\x01\x01\x01\x00\x07\x00\x00\x00", 12);
    assert_memory_equal(header.publisher, "0123456789abcdef", 16);
    assert_int_equal(header.epoch, 11);
    assert_int_equal(header.sequence, 12);
    check_sources(batch);
    check_definitions(batch);
    assert_int_equal(batch->n_fragments, 2);
    check_fragment(batch->fragments[0], 0);
    check_fragment(batch->fragments[1], 1);
    assert_int_equal(batch->n_usages, 1);
    assert_int_equal(batch->usages[0]->source, 0);
    assert_int_equal(batch->usages[0]->start_ns, INT64_C(1764590000000000000));
    assert_int_equal(batch->usages[0]->span_ns, INT64_C(10000000000));
    assert_int_equal(batch->usages[0]->cpu_ns, INT64_C(4000000000));
    assert_int_equal(batch->usages[0]->hot_span_ns, 1000000000);
    assert_int_equal(batch->usages[0]->hot_cpu_ns, 900000000);
    assert_int_equal(batch->usages[0]->isolates, 2);
    ef_wire_reader_free(reader);
    ef_wire_keys_free(keys);
    ef_test_tmpdir_remove(folder);
    free(data);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_reads_field_by_field),
    };

    return cmocka_run_group_tests_name("wire golden", tests, NULL, NULL);
}
