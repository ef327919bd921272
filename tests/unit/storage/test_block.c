/*
 * The block codec: bytes, round trips, and each error it promises.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "storage/block.h"

#define PAIRS_MAX 600

static struct ef_buf
encode(const struct ef_block_section *sections, size_t count)
{
    struct ef_buf out;
    struct ef_err err = {0};

    ef_buf_init(&out, 64u << 20);
    if (ef_block_encode(sections, count, &out, &err) != EF_OK)
        fail_msg("encode: %s", err.msg);
    return out;
}

/* Decodes a block whole; gives the first error. Nothing is kept. */
static ef_rc
decode(const void *data, size_t len, struct ef_err *err)
{
    struct ef_block_reader reader;
    struct ef_block_section_header header;
    ef_rc rc = ef_block_begin(&reader, data, len, err);

    if (rc != EF_OK)
        return rc;
    while (ef_block_next(&reader, &header, &rc, err)) {
        struct ef_block_pair *pairs = calloc(header.pair_count + 1, sizeof(*pairs));
        rc = ef_block_pairs(&reader, &header, pairs, err);
        free(pairs);
        if (rc != EF_OK)
            return rc;
    }
    return rc;
}

static void
assert_section(struct ef_block_reader *reader, const struct ef_block_section *section)
{
    struct ef_block_section_header header = {0};
    struct ef_block_pair *pairs = calloc(section->pair_count + 1, sizeof(*pairs));
    ef_rc rc;

    assert_true(ef_block_next(reader, &header, &rc, NULL));
    assert_int_equal(header.stratum, section->stratum);
    assert_int_equal(header.weight_milli, section->weight_milli);
    assert_int_equal(header.interval, section->interval);
    assert_int_equal(header.pair_count, section->pair_count);
    assert_int_equal(ef_block_pairs(reader, &header, pairs, NULL), EF_OK);
    for (size_t i = 0; i < header.pair_count; i++) {
        assert_int_equal(pairs[i].stack, section->pairs[i].stack);
        assert_int_equal(pairs[i].count, section->pairs[i].count);
        assert_int_equal(pairs[i].value, section->pairs[i].value);
    }
    free(pairs);
}

static void
assert_round_trip(const struct ef_block_section *sections, size_t count)
{
    struct ef_buf out = encode(sections, count);
    struct ef_block_reader reader;
    struct ef_block_section_header header;
    ef_rc rc;

    assert_int_equal(ef_block_begin(&reader, out.data, out.len, NULL), EF_OK);
    for (size_t i = 0; i < count; i++)
        assert_section(&reader, &sections[i]);
    assert_false(ef_block_next(&reader, &header, &rc, NULL));
    assert_int_equal(rc, EF_OK);
    ef_buf_fini(&out);
}

static void
a_block_has_these_bytes(void **state)
{
    const struct ef_block_pair plain[] = {{1, 3, 30}, {300, 1, 10}};
    const struct ef_block_pair valued[] = {{7, 2, -5}};
    const struct ef_block_section sections[] = {{0, 1000, 10, plain, 2}, {1, 1, 0, valued, 1}};
    const uint8_t golden[] = {1, 2,                              /* format, sections */
                              0, 0,    0xe8, 0x07, 10, 2,        /* first header */
                              1, 0xab, 0x02, 3,    1,            /* ids, counts */
                              1, 1,    1,    0,    1,  7, 2, 9}; /* second section */
    struct ef_buf out = encode(sections, 2);

    (void)state;
    assert_int_equal(out.len, sizeof(golden));
    assert_memory_equal(out.data, golden, sizeof(golden));
    ef_buf_fini(&out);
    assert_round_trip(sections, 2);
}

static void
encode_appends_and_leaves_what_was_there(void **state)
{
    const struct ef_block_pair descending[] = {{2, 1, 0}, {1, 1, 0}};
    const struct ef_block_section good = {0, 1, 1, NULL, 0}, bad = {0, 1, 1, descending, 2};
    struct ef_buf out;
    struct ef_err err = {0};

    (void)state;
    ef_buf_init(&out, 9);
    ef_buf_append_str(&out, "abc");
    assert_int_equal(ef_block_encode(&bad, 1, &out, &err), EF_EINVAL);
    assert_non_null(strstr(err.msg, "stack 1 after stack 2"));
    assert_int_equal(out.len, 3);
    assert_int_equal(ef_block_encode(&good, 1, &out, &err), EF_ELIMIT); /* 7 bytes, 6 are left */
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "abc", 3);
    ef_buf_fini(&out);
}

static void
the_edges_of_all_numbers_come_back(void **state)
{
    const struct ef_block_pair pairs[] = {{1, 0, 0},
                                          {2, UINT64_MAX, INT64_MIN},
                                          {UINT32_MAX - 1, 127, INT64_MAX},
                                          {UINT32_MAX, 128, -1}};
    const struct ef_block_section sections[] = {{255, UINT64_MAX, UINT64_MAX, pairs, 4},
                                                {0, 0, 0, NULL, 0}};

    (void)state;
    assert_round_trip(sections, 2);
    assert_round_trip(NULL, 0);
}

static void
values_that_follow_from_the_interval_take_no_bytes(void **state)
{
    struct ef_block_pair pairs[100];
    struct ef_block_section section = {0, 1000, 10000000, pairs, 100};
    struct ef_buf without, with;

    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        pairs[i] = (struct ef_block_pair){i + 1, 2, 20000000};
    without = encode(&section, 1);
    pairs[99].value++;
    with = encode(&section, 1);
    assert_int_equal(without.len, 2 + 2 + 2 + 4 + 1 + 200);
    assert_int_equal(with.len, without.len + 100 * 4);
    ef_buf_fini(&without);
    ef_buf_fini(&with);
}

static uint64_t
next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *seed >> 16;
}

/* A number of random length in bits, so that all varint lengths occur. */
static uint64_t
random_number(uint64_t *seed, unsigned bits_max)
{
    return next_random(seed) & ((UINT64_C(1) << (next_random(seed) % (bits_max + 1))) - 1);
}

static struct ef_block_section
random_section(uint64_t *seed, struct ef_block_pair *pairs)
{
    unsigned gap_bits = (unsigned)(next_random(seed) % 17);
    unsigned count_bits = (unsigned)(next_random(seed) % 20);
    bool valued = next_random(seed) % 2 == 0;
    struct ef_block_section section = {(uint8_t)(next_random(seed) % 2), random_number(seed, 40),
                                       random_number(seed, 40), pairs,
                                       next_random(seed) % PAIRS_MAX};
    uint32_t id = 0;

    for (size_t i = 0; i < section.pair_count; i++) {
        id += 1 + (uint32_t)random_number(seed, gap_bits);
        pairs[i].stack = id;
        pairs[i].count = random_number(seed, count_bits);
        pairs[i].value = valued ? (int64_t)next_random(seed) - (int64_t)next_random(seed)
                                : (int64_t)(pairs[i].count * section.interval);
    }
    return section;
}

static void
random_blocks_come_back(void **state)
{
    static struct ef_block_pair pairs[4][PAIRS_MAX];
    uint64_t seed = ef_test_seed();

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct ef_block_section sections[4];
        size_t count = next_random(&seed) % 5;
        for (size_t i = 0; i < count; i++)
            sections[i] = random_section(&seed, pairs[i]);
        assert_round_trip(sections, count);
    }
}

/* Goal: a block that ends anywhere is an error. The copy has the exact size, for the sanitizer. */
static void
a_block_cut_anywhere_is_corrupt(void **state)
{
    struct ef_block_pair pairs[50];
    struct ef_block_section sections[] = {{0, 1000, 10, pairs, 50}, {1, 1000, 10, pairs, 20}};
    struct ef_buf out;

    (void)state;
    for (uint32_t i = 0; i < 50; i++)
        pairs[i] = (struct ef_block_pair){(i + 1) * 100, i * 5, i % 7};
    out = encode(sections, 2);
    assert_int_equal(decode(out.data, out.len, NULL), EF_OK);
    for (size_t len = 0; len < out.len; len++) {
        struct ef_err err = {0};
        uint8_t *exact = malloc(len > 0 ? len : 1);
        memcpy(exact, out.data, len);
        assert_int_equal(decode(exact, len, &err), EF_ECORRUPT);
        assert_true(err.msg[0] != '\0');
        free(exact);
    }
    ef_buf_fini(&out);
}

static void
assert_corrupt(const uint8_t *bytes, size_t len, const char *words)
{
    struct ef_err err = {0};

    assert_int_equal(decode(bytes, len, &err), EF_ECORRUPT);
    if (strstr(err.msg, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, words);
}

#define ASSERT_CORRUPT(words, ...)                                                                 \
    assert_corrupt((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}), words)

static void
each_kind_of_damage_is_told(void **state)
{
    (void)state;
    ASSERT_CORRUPT("format 2", 2, 0);
    ASSERT_CORRUPT("section count", 1, 0x81, 0x02);
    ASSERT_CORRUPT("section count", 1, 0x80);
    ASSERT_CORRUPT("section header", 1, 1, 0, 0, 0x80);
    ASSERT_CORRUPT("unknown flags 0x02", 1, 1, 0, 2, 1, 1, 0);
    ASSERT_CORRUPT("says 2 pairs, but 3 bytes", 1, 1, 0, 0, 1, 1, 2, 1, 1, 1);
    ASSERT_CORRUPT("says 1 pairs, but 2 bytes", 1, 1, 0, 1, 1, 1, 1, 1, 1);
    ASSERT_CORRUPT("says 1048577 pairs", 1, 1, 0, 0, 1, 1, 0x81, 0x80, 0x40, 1, 1, 1);
    ASSERT_CORRUPT("stack ids", 1, 1, 0, 0, 1, 1, 1, 0, 1);
    ASSERT_CORRUPT("stack ids", 1, 1, 0, 0, 1, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 1);
    ASSERT_CORRUPT("stack ids", 1, 1, 0, 0, 1, 1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 1, 1);
    ASSERT_CORRUPT("counts", 1, 1, 0, 0, 1, 1, 1, 1, 0x80, 0x80);
    ASSERT_CORRUPT("values", 1, 1, 0, 1, 1, 1, 1, 1, 1, 0x80);
    ASSERT_CORRUPT("1 bytes after", 1, 1, 0, 0, 1, 1, 1, 1, 1, 9);
}

/* The same damages in the middle of long columns, where eight numbers are read at a time. */
static void
damage_inside_the_fast_path_is_told(void **state)
{
    uint8_t bytes[7 + 200] = {1, 1, 0, 0, 1, 1, 100};

    (void)state;
    memset(bytes + 7, 1, 200);
    assert_int_equal(decode(bytes, sizeof(bytes), NULL), EF_OK);
    bytes[7 + 20] = 0; /* a delta of 0 */
    assert_corrupt(bytes, sizeof(bytes), "stack ids");
    memset(bytes + 7 + 20, 0xff, 5); /* a delta of more than 32 bits */
    assert_corrupt(bytes, sizeof(bytes), "stack ids");
    memset(bytes + 7, 1, 200);
    memset(bytes + 7 + 20, 0xff, 4); /* 2^32 - 1: each delta fits, the sum does not */
    bytes[7 + 24] = 0x0f;
    assert_corrupt(bytes, sizeof(bytes), "stack ids");
}

/* interval × count beyond int64 without a value column can only be damage. */
static void
a_value_beyond_int64_is_corrupt(void **state)
{
    const uint8_t max[] = {1,    1,    0,    0,    1,    0xff, 0xff, 0xff, 0xff,
                           0xff, 0xff, 0xff, 0xff, 0x7f, 1,    1,    1};
    uint8_t two[sizeof(max)];

    (void)state;
    assert_int_equal(decode(max, sizeof(max), NULL), EF_OK);
    memcpy(two, max, sizeof(max));
    two[sizeof(two) - 1] = 2;
    assert_corrupt(two, sizeof(two), "counts");
}

static void
encode_refuses_what_is_too_much(void **state)
{
    static struct ef_block_section sections[EF_BLOCK_SECTIONS_MAX + 1];
    static struct ef_block_pair pairs[EF_BLOCK_PAIRS_MAX + 1];
    struct ef_block_section section = {0, 1, 1, pairs, EF_BLOCK_PAIRS_MAX + 1};
    const struct ef_block_pair root = {0, 1, 1};
    struct ef_buf out;

    (void)state;
    ef_buf_init(&out, 64u << 20);
    assert_int_equal(ef_block_encode(sections, EF_BLOCK_SECTIONS_MAX + 1, &out, NULL), EF_EINVAL);
    assert_int_equal(ef_block_encode(&section, 1, &out, NULL), EF_EINVAL);
    section.pairs = &root;
    section.pair_count = 1;
    assert_int_equal(ef_block_encode(&section, 1, &out, NULL), EF_EINVAL);
    assert_int_equal(out.len, 0);
    for (uint32_t i = 0; i < EF_BLOCK_PAIRS_MAX; i++)
        pairs[i] = (struct ef_block_pair){i + 1, 1, 1};
    section = (struct ef_block_section){0, 1, 1, pairs, EF_BLOCK_PAIRS_MAX};
    assert_int_equal(ef_block_encode(&section, 1, &out, NULL), EF_OK);
    assert_int_equal(decode(out.data, out.len, NULL), EF_OK);
    ef_buf_fini(&out);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_has_these_bytes),
        cmocka_unit_test(encode_appends_and_leaves_what_was_there),
        cmocka_unit_test(the_edges_of_all_numbers_come_back),
        cmocka_unit_test(values_that_follow_from_the_interval_take_no_bytes),
        cmocka_unit_test(random_blocks_come_back),
        cmocka_unit_test(a_block_cut_anywhere_is_corrupt),
        cmocka_unit_test(each_kind_of_damage_is_told),
        cmocka_unit_test(damage_inside_the_fast_path_is_told),
        cmocka_unit_test(a_value_beyond_int64_is_corrupt),
        cmocka_unit_test(encode_refuses_what_is_too_much),
    };

    return cmocka_run_group_tests_name("block", tests, NULL, NULL);
}
