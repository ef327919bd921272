/*
 * The worked example of storage/FORMAT.md: its bytes are read from the file, decoded, and encoded
 * again. A change of the format that forgets the document fails here, and the other way round.
 */
#include "tests/support/ef_test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/time.h"
#include "storage/block.h"
#include "storage/rocksdb/records.h"

#define BYTES_MAX 256
#define INTERVAL_NS 50000000

struct bytes {
    uint8_t data[BYTES_MAX];
    size_t len;
};

/* One line pair of the example. */
struct example {
    struct bytes key, value;
};

static const struct ef_store_function functions[] = {{1, 0x1111111111111111, "main", "a.js", 1},
                                                     {2, 0x2222222222222222, "work", "a.js", 9}};
static const struct ef_store_stack stacks[] = {{1, 0x3333333333333333, 0, 1, 2},
                                               {2, 0x4444444444444444, 1, 2, 10}};
static const struct ef_block_pair pairs[] = {{1, 3, INT64_C(3) * INTERVAL_NS},
                                             {2, 200, INT64_C(200) * INTERVAL_NS}};
static const struct ef_store_totals totals = {
    .samples = 203,
    .value = INT64_C(203) * INTERVAL_NS,
    .value_weighted = INT64_C(203) * INTERVAL_NS,
    .covered_ns = EF_BUCKET_NS,
    .expected_ns = EF_BUCKET_NS,
    .bursts = 1,
    .squares = 203 * 203,
    .cpu_ns = 9000000000,
    .instances = 1,
    .heap_used_bytes_max = 4 << 20,
    .pause_ns_max = 35000000,
};

static int64_t
bucket_ns(void)
{
    ef_wall_ns at = {0};

    assert_int_equal(ef_wall_parse("2026-12-01T03:12:00Z", at, &at, NULL), EF_OK);
    return at.ns;
}

static char *
read_document(void)
{
    const char *source = getenv("EF_SOURCE_DIR");
    char path[1024], *full, *text;
    size_t len;

    snprintf(path, sizeof(path), "%s/storage/FORMAT.md", source != NULL ? source : ".");
    full = realpath(path, NULL); /* absolute, so that it is not looked for under tests/data */
    assert_non_null(full);
    text = (char *)ef_test_read_file(full, &len);
    free(full);
    return text;
}

/* Reads hex digits after `word`, spaces between allowed, to the end of the line. */
static const char *
read_hex(const char *at, const char *word, struct bytes *ret)
{
    at += strspn(at, " \n");
    assert_int_equal(strncmp(at, word, strlen(word)), 0);
    at += strlen(word);
    ret->len = 0;
    while (*at != '\n') {
        unsigned byte;
        at += strspn(at, " ");
        assert_true(isxdigit((unsigned char)at[0]) && isxdigit((unsigned char)at[1]));
        assert_int_equal(sscanf(at, "%2x", &byte), 1);
        assert_true(ret->len < BYTES_MAX);
        ret->data[ret->len++] = (uint8_t)byte;
        at += 2;
    }
    return at;
}

static struct example
find_example(const char *name)
{
    char *document = read_document();
    struct example example;
    const char *at = strstr(document, "## Example");
    char line[64];

    assert_non_null(at);
    snprintf(line, sizeof(line), "\n%s ", name);
    at = strstr(at, line);
    if (at == NULL)
        fail_msg("FORMAT.md has no example '%s'", name);
    at = read_hex(at + strlen(line), "key ", &example.key);
    read_hex(at, "value ", &example.value);
    free(document);
    return example;
}

static void
assert_bytes(const struct bytes *bytes, const void *data, size_t len)
{
    if (bytes->len != len || memcmp(bytes->data, data, len) != 0) {
        char text[2 * BYTES_MAX + 1] = "";
        for (size_t i = 0; i < len && i < BYTES_MAX; i++)
            snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)data)[i]);
        fail_msg("the code writes %s", text);
    }
}

static void
assert_key(const struct example *example, struct ef_key key)
{
    assert_bytes(&example->key, key.bytes, key.len);
}

/* Compares and frees. */
static void
assert_value(const struct example *example, struct ef_buf *value)
{
    assert_false(value->failed);
    assert_bytes(&example->value, value->data, value->len);
    ef_buf_fini(value);
}

static struct ef_buf
new_value(void)
{
    struct ef_buf value;

    ef_buf_init(&value, 1u << 20);
    return value;
}

static void
the_format_version_is_as_written(void **state)
{
    struct example example = find_example("format");
    struct ef_buf value = new_value();

    (void)state;
    assert_key(&example, ef_key_meta(EF_META_FORMAT));
    ef_buf_put_le32(&value, EF_STORE_FORMAT);
    assert_value(&example, &value);
}

static void
the_version_is_as_written(void **state)
{
    struct example example = find_example("version");
    struct ef_store_version version;
    struct ef_buf value = new_value();
    uint32_t id;

    (void)state;
    assert_true(ef_key_read_id(example.key.data, example.key.len, &id));
    assert_int_equal(id, 1);
    assert_int_equal(ef_record_read_version(example.value.data, example.value.len, &version, NULL),
                     EF_OK);
    assert_string_equal(version.account, "acme");
    assert_string_equal(version.worker, "api");
    assert_string_equal(version.version, "v1");
    assert_int_equal(version.created_ns, bucket_ns());
    assert_key(&example, ef_key_meta_id(EF_META_VERSION, 1));
    ef_record_write_version(&value, &version);
    assert_value(&example, &value);
}

static void
the_series_is_as_written(void **state)
{
    struct example example = find_example("series");
    struct ef_store_series series;
    struct ef_buf value = new_value();

    (void)state;
    assert_int_equal(ef_record_read_series(example.value.data, example.value.len, &series, NULL),
                     EF_OK);
    assert_int_equal(series.version_id, 1);
    assert_int_equal(series.profile_type, EF_TYPE_CPU);
    assert_string_equal(series.region, "fra");
    assert_key(&example, ef_key_meta_id(EF_META_SERIES, 1));
    ef_record_write_series(&value, &series);
    assert_value(&example, &value);
}

static void
the_span_of_the_tier_is_as_written(void **state)
{
    struct example example = find_example("tier");
    struct ef_span span;
    struct ef_buf value = new_value();

    (void)state;
    assert_int_equal(ef_record_read_span(example.value.data, example.value.len, &span, NULL),
                     EF_OK);
    assert_int_equal(span.oldest_ns, bucket_ns());
    assert_int_equal(span.newest_ns, bucket_ns());
    assert_key(&example, ef_key_meta_id(EF_META_TIER, EF_TIER_10S));
    ef_record_write_span(&value, &span);
    assert_value(&example, &value);
}

static void
the_functions_are_as_written(void **state)
{
    struct example example = find_example("functions");
    struct ef_buf value = new_value();
    struct ef_run run;
    uint32_t last_id = 1;

    (void)state;
    assert_int_equal(ef_run_begin(&run, 1, example.value.data, example.value.len, NULL), EF_OK);
    ef_record_begin_run(&value);
    for (size_t i = 0; i < EF_COUNT_OF(functions); i++) {
        struct ef_store_function function;
        assert_true(ef_run_more(&run));
        assert_int_equal(ef_run_function(&run, &function, NULL), EF_OK);
        assert_int_equal(function.id, functions[i].id);
        assert_int_equal(function.hash, functions[i].hash);
        assert_int_equal(function.line, functions[i].line);
        assert_string_equal(function.name, functions[i].name);
        assert_string_equal(function.file, functions[i].file);
        ef_record_write_function(&value, last_id, &function);
        last_id = function.id;
    }
    assert_false(ef_run_more(&run));
    assert_key(&example, ef_key_dict(1, EF_DICT_FUNCTIONS, 1));
    assert_value(&example, &value);
}

static void
the_stacks_are_as_written(void **state)
{
    struct example example = find_example("stacks");
    struct ef_buf value = new_value();
    struct ef_run run;
    uint32_t last_id = 1;

    (void)state;
    assert_int_equal(ef_run_begin(&run, 1, example.value.data, example.value.len, NULL), EF_OK);
    ef_record_begin_run(&value);
    for (size_t i = 0; i < EF_COUNT_OF(stacks); i++) {
        struct ef_store_stack stack;
        assert_true(ef_run_more(&run));
        assert_int_equal(ef_run_stack(&run, &stack, NULL), EF_OK);
        assert_int_equal(stack.id, stacks[i].id);
        assert_int_equal(stack.hash, stacks[i].hash);
        assert_int_equal(stack.parent, stacks[i].parent);
        assert_int_equal(stack.function, stacks[i].function);
        assert_int_equal(stack.line, stacks[i].line);
        ef_record_write_stack(&value, last_id, &stack);
        last_id = stack.id;
    }
    assert_false(ef_run_more(&run));
    assert_key(&example, ef_key_dict(1, EF_DICT_STACKS, 1));
    assert_value(&example, &value);
}

static void
the_block_is_as_written(void **state)
{
    struct example example = find_example("block");
    const struct ef_block_section section = {0, 1000, INTERVAL_NS, pairs, EF_COUNT_OF(pairs)};
    struct ef_block_section_header header;
    struct ef_block_reader reader;
    struct ef_block_pair got[EF_COUNT_OF(pairs)];
    struct ef_buf value = new_value();
    uint32_t series_id, part;
    int64_t at_ns;
    ef_rc rc;

    (void)state;
    assert_true(ef_key_read_block(example.key.data, example.key.len, &series_id, &at_ns, &part));
    assert_true(series_id == 1 && at_ns == bucket_ns() && part == 7);
    assert_int_equal(ef_block_begin(&reader, example.value.data, example.value.len, NULL), EF_OK);
    assert_true(ef_block_next(&reader, &header, &rc, NULL));
    assert_int_equal(header.pair_count, EF_COUNT_OF(pairs));
    assert_int_equal(header.weight_milli, 1000);
    assert_int_equal(header.interval, INTERVAL_NS);
    assert_int_equal(ef_block_pairs(&reader, &header, got, NULL), EF_OK);
    for (size_t i = 0; i < EF_COUNT_OF(pairs); i++) {
        assert_int_equal(got[i].stack, pairs[i].stack);
        assert_int_equal(got[i].count, pairs[i].count);
        assert_int_equal(got[i].value, pairs[i].value);
    }
    assert_false(ef_block_next(&reader, &header, &rc, NULL));
    assert_int_equal(rc, EF_OK);
    assert_key(&example, ef_key_block(1, bucket_ns(), 7));
    assert_int_equal(ef_block_encode(&section, 1, &value, NULL), EF_OK);
    assert_value(&example, &value);
}

static void
the_totals_are_as_written(void **state)
{
    struct example example = find_example("totals");
    struct ef_store_totals got;
    struct ef_buf value = new_value();

    (void)state;
    assert_key(&example, ef_key_totals(EF_TIER_10S, 1, bucket_ns(), 7));
    ef_record_write_totals(&value, &totals);
    assert_value(&example, &value);
    assert_int_equal(ef_record_read_totals(example.value.data, example.value.len, &got, NULL),
                     EF_OK);
    assert_memory_equal(&got, &totals, sizeof(totals));
}

static void
the_ack_is_as_written(void **state)
{
    struct example example = find_example("ack");
    struct ef_store_ack ack = {.epoch = 5,
                               .contiguous = 40,
                               .above_count = 2,
                               .above = {42, 45},
                               .fragments_stored = 1,
                               .samples_stored = 203,
                               .updated_ns = bucket_ns(),
                               .name = "host-1"};
    static struct ef_store_ack got;
    struct ef_buf value = new_value();

    (void)state;
    for (uint8_t i = 0; i < sizeof(ack.publisher); i++)
        ack.publisher[i] = i;
    assert_key(&example, ef_key_ack(ack.publisher, ack.epoch));
    ef_record_write_ack(&value, &ack);
    assert_value(&example, &value);
    assert_int_equal(ef_record_read_ack(example.key.data, example.key.len, example.value.data,
                                        example.value.len, &got, NULL),
                     EF_OK);
    assert_memory_equal(&got, &ack, sizeof(ack));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_format_version_is_as_written),
        cmocka_unit_test(the_version_is_as_written),
        cmocka_unit_test(the_series_is_as_written),
        cmocka_unit_test(the_span_of_the_tier_is_as_written),
        cmocka_unit_test(the_functions_are_as_written),
        cmocka_unit_test(the_stacks_are_as_written),
        cmocka_unit_test(the_block_is_as_written),
        cmocka_unit_test(the_totals_are_as_written),
        cmocka_unit_test(the_ack_is_as_written),
    };

    return cmocka_run_group_tests_name("FORMAT.md", tests, NULL, NULL);
}
