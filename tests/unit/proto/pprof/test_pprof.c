/*
 * Reading and writing pprof: each kind of hostile or odd file of the field, built here byte by
 * byte.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/pprof/pprof.h"

#define BYTES_MAX ((size_t)16 << 20)

/* A pprof under construction: protobuf by hand, so that it can be wrong in any way. */
struct fixture {
    struct ef_buf out;
    struct ef_buf message;
    struct ef_buf inner;
    struct ef_profile *profile;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    ef_buf_init(&f->out, BYTES_MAX * 4);
    ef_buf_init(&f->message, BYTES_MAX);
    ef_buf_init(&f->inner, BYTES_MAX);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_buf_fini(&f->out);
    ef_buf_fini(&f->message);
    ef_buf_fini(&f->inner);
    ef_profile_free(f->profile);
    free(f);
    return 0;
}

static void
number(struct ef_buf *buf, uint32_t field, uint64_t value)
{
    ef_buf_put_varint(buf, field << 3);
    ef_buf_put_varint(buf, value);
}

static void
bytes(struct ef_buf *buf, uint32_t field, const void *data, size_t len)
{
    ef_buf_put_varint(buf, field << 3 | 2);
    ef_buf_put_varint(buf, len);
    ef_buf_append(buf, data, len);
}

static void
string(struct fixture *f, const char *text)
{
    bytes(&f->out, 6, text, strlen(text));
}

static void
end(struct fixture *f, uint32_t field)
{
    bytes(&f->out, field, f->message.data, f->message.len);
    ef_buf_clear(&f->message);
}

static void
sample_type(struct fixture *f, uint64_t type, uint64_t unit)
{
    number(&f->message, 1, type);
    number(&f->message, 2, unit);
    end(f, 1);
}

static void
function(struct fixture *f, uint64_t id, uint64_t name)
{
    number(&f->message, 1, id);
    number(&f->message, 2, name);
    end(f, 5);
}

/* A location with one line per function id; 0 ends the list. */
static void
location(struct fixture *f, uint64_t id, uint64_t mapping, uint64_t address,
         const uint64_t *functions)
{
    number(&f->message, 1, id);
    number(&f->message, 2, mapping);
    number(&f->message, 3, address);
    for (; functions != NULL && *functions != 0; functions++) {
        ef_buf_clear(&f->inner);
        number(&f->inner, 1, *functions);
        number(&f->inner, 2, 10 * *functions);
        bytes(&f->message, 4, f->inner.data, f->inner.len);
    }
    end(f, 4);
}

/* A packed sample with up to two locations (0 = none), leaf first, and values. */
static void
sample(struct fixture *f, uint64_t leaf, uint64_t caller, int value_count, const int64_t *values)
{
    ef_buf_clear(&f->inner);
    if (leaf != 0)
        ef_buf_put_varint(&f->inner, leaf);
    if (caller != 0)
        ef_buf_put_varint(&f->inner, caller);
    bytes(&f->message, 1, f->inner.data, f->inner.len);
    ef_buf_clear(&f->inner);
    for (int i = 0; i < value_count; i++)
        ef_buf_put_varint(&f->inner, (uint64_t)values[i]);
    bytes(&f->message, 2, f->inner.data, f->inner.len);
    end(f, 2);
}

#define VALUES(...)                                                                                \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[])                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define FUNCTIONS(...) ((const uint64_t[]){__VA_ARGS__, 0})

/* Strings 0 to 6, and the types samples/count, cpu/nanoseconds. */
static void
head(struct fixture *f)
{
    static const char *const texts[] = {"",     "samples", "count", "cpu", "nanoseconds",
                                        "main", "work"};

    for (size_t i = 0; i < 7; i++)
        string(f, texts[i]);
    sample_type(f, 1, 2);
    sample_type(f, 3, 4);
}

/* main (1) calls work (2), locations 1 and 2. */
static void
two_functions(struct fixture *f)
{
    head(f);
    function(f, 1, 5);
    function(f, 2, 6);
    location(f, 1, 0, 0, FUNCTIONS(1));
    location(f, 2, 0, 0, FUNCTIONS(2));
}

static ef_rc
read_buf(struct fixture *f)
{
    ef_profile_free(f->profile);
    f->profile = NULL;
    return ef_pprof_read(f->out.data, f->out.len, BYTES_MAX, &ef_profile_limits_default,
                         &f->profile, &f->err);
}

static void
expect_refused(struct fixture *f, ef_rc rc, const char *words)
{
    assert_int_equal(read_buf(f), rc);
    assert_null(f->profile);
    if (strstr(f->err.msg, words) == NULL)
        fail_msg("'%s' does not say '%s'", f->err.msg, words);
}

static int64_t
value_at(const struct ef_profile *profile, uint32_t node, uint32_t type)
{
    return profile->values[(size_t)node * profile->type_count + type];
}

/* "leaf<caller<..." of a node. */
static const char *
stack_of(const struct ef_profile *profile, uint32_t node)
{
    static char text[256];
    char buf[64];

    text[0] = '\0';
    for (; node != 0; node = profile->nodes[node].parent) {
        strcat(text, text[0] != '\0' ? "<" : "");
        strcat(text, ef_profile_frame_name(profile, profile->nodes[node].frame, buf, sizeof(buf)));
    }
    return text;
}

static void
reads_types_stacks_lines_and_times(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    sample(f, 1, 0, VALUES(1, 1000));
    sample(f, 2, 1, VALUES(2, 2000));
    number(&f->out, 9, 111);
    number(&f->out, 10, 222);
    number(&f->message, 1, 3);
    number(&f->message, 2, 4);
    end(f, 11);
    number(&f->out, 12, 1000);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->node_count, 3);
    assert_string_equal(stack_of(f->profile, 2), "work<main");
    assert_int_equal(value_at(f->profile, 2, 0), 5);
    assert_int_equal(value_at(f->profile, 2, 1), 5000);
    assert_int_equal(value_at(f->profile, 1, 1), 1000);
    assert_int_equal(f->profile->frames[2].line, 20);
    assert_int_equal(f->profile->samples, 3);
    assert_int_equal(f->profile->time_ns, 111);
    assert_int_equal(f->profile->duration_ns, 222);
    assert_int_equal(f->profile->period, 1000);
    assert_string_equal(ef_profile_string(f->profile, f->profile->period_type.type), "cpu");
}

static void
reads_gzip_alike(void **state)
{
    struct fixture *f = *state;
    struct ef_buf gzip;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    ef_buf_init(&gzip, BYTES_MAX);
    assert_int_equal(ef_gzip_deflate(f->out.data, f->out.len, &gzip, NULL), EF_OK);
    assert_true(ef_pprof_sniff(gzip.data, gzip.len));
    assert_true(ef_pprof_sniff(f->out.data, f->out.len));
    ef_buf_fini(&f->out);
    f->out = gzip;
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 1), 3000);
}

static void
reads_strings_that_come_last(void **state)
{
    struct fixture *f = *state;

    sample(f, 1, 0, VALUES(4));
    location(f, 1, 0, 0, FUNCTIONS(1));
    function(f, 1, 3);
    sample_type(f, 1, 2);
    string(f, "");
    string(f, "samples");
    string(f, "count");
    string(f, "late");
    assert_true(ef_pprof_sniff(f->out.data, f->out.len));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 1), "late");
    assert_int_equal(value_at(f->profile, 1, 0), 4);
}

static void
reads_unpacked_lists(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    number(&f->message, 1, 2);
    number(&f->message, 1, 1);
    number(&f->message, 2, 7);
    number(&f->message, 2, 8);
    end(f, 2);
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "work<main");
    assert_int_equal(value_at(f->profile, 2, 1), 8);
}

static void
skips_fields_it_does_not_know(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    bytes(&f->out, 99, "whatever", 8);
    number(&f->out, 100, 5);
    ef_buf_put_varint(&f->out, 101 << 3 | 5);
    ef_buf_put_le32(&f->out, 5);
    ef_buf_put_varint(&f->out, 102 << 3 | 1);
    ef_buf_put_le64(&f->out, 5);
    sample(f, 1, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 1);
}

static void
line_zero_of_a_location_is_the_leaf(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    location(f, 3, 0, 0x99, FUNCTIONS(2, 1));
    sample(f, 3, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "work<main");
    assert_int_equal(value_at(f->profile, 2, 0), 1);
}

static void
sparse_and_huge_ids_are_found(void **state)
{
    struct fixture *f = *state;

    head(f);
    function(f, UINT64_MAX, 5);
    function(f, 1u << 20, 6);
    location(f, 1000003, 0, 0, FUNCTIONS(UINT64_MAX));
    location(f, UINT64_C(1) << 60, 0, 0, FUNCTIONS(1u << 20));
    sample(f, UINT64_C(1) << 60, 1000003, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "work<main");
}

static void
anonymous_becomes_the_empty_name(void **state)
{
    struct fixture *f = *state;

    head(f);
    string(f, "(anonymous)");
    function(f, 1, 7);
    location(f, 1, 0, 0, FUNCTIONS(1));
    sample(f, 1, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->functions[1].name, 0);
    assert_string_equal(stack_of(f->profile, 1), "(anonymous)");
}

static void
labels_are_dropped_and_counted(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    number(&f->message, 1, 1);
    bytes(&f->message, 3, "\x08\x05\x10\x06", 4);
    bytes(&f->message, 3, "\x08\x05\x18\x06", 4);
    bytes(&f->message, 2, "\x01\x02", 2);
    end(f, 2);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->labels_dropped, 2);
    assert_int_equal(ef_profile_total(f->profile, 1), 2);
}

/* Field fault 3: `cat a.pb b.pb` joins their fields. Each way that it can go must be refused. */
static void
refuses_two_profiles_one_after_another(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    two_functions(f);
    sample(f, 2, 0, VALUES(1, 1));
    expect_refused(f, EF_ECORRUPT, "several profiles");
}

static void
refuses_two_empty_profiles_with_other_types(void **state)
{
    struct fixture *f = *state;

    string(f, "");
    string(f, "samples");
    string(f, "count");
    sample_type(f, 1, 2);
    string(f, "");
    string(f, "cpu");
    string(f, "nanoseconds");
    sample_type(f, 4, 5);
    expect_refused(f, EF_ECORRUPT, "several profiles");
}

/* An empty profile without types in front would shift all string indexes by one. */
static void
refuses_an_empty_profile_in_front_of_another(void **state)
{
    struct fixture *f = *state;

    string(f, "");
    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    expect_refused(f, EF_ECORRUPT, "has no name");
}

static void
refuses_two_periods(void **state)
{
    struct fixture *f = *state;

    head(f);
    number(&f->out, 12, 5);
    number(&f->out, 12, 5);
    expect_refused(f, EF_ECORRUPT, "the period occurs twice");
}

static void
refuses_two_gzip_members_that_are_two_profiles(void **state)
{
    struct fixture *f = *state;
    struct ef_buf gzip;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    ef_buf_init(&gzip, BYTES_MAX);
    assert_int_equal(ef_gzip_deflate(f->out.data, f->out.len, &gzip, NULL), EF_OK);
    assert_int_equal(ef_gzip_deflate(f->out.data, f->out.len, &gzip, NULL), EF_OK);
    ef_buf_fini(&f->out);
    f->out = gzip;
    expect_refused(f, EF_ECORRUPT, "several profiles");
}

static void
reads_one_profile_in_two_gzip_members(void **state)
{
    struct fixture *f = *state;
    struct ef_buf gzip;
    size_t half;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 17));
    half = f->out.len / 2;
    ef_buf_init(&gzip, BYTES_MAX);
    assert_int_equal(ef_gzip_deflate(f->out.data, half, &gzip, NULL), EF_OK);
    assert_int_equal(ef_gzip_deflate(f->out.data + half, f->out.len - half, &gzip, NULL), EF_OK);
    ef_buf_fini(&f->out);
    f->out = gzip;
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 1), 17);
}

/* Field fault 4, both ways. */
static void
refuses_fewer_or_more_values_than_types(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    sample(f, 1, 0, VALUES(1));
    expect_refused(f, EF_ECORRUPT, "sample 1 has 1 values for 2 sample types");
    ef_buf_clear(&f->out);
    two_functions(f);
    sample(f, 1, 0, VALUES(1, 2, 3));
    expect_refused(f, EF_ECORRUPT, "sample 0 has 3 values for 2 sample types");
}

static void
refuses_more_values_than_there_can_be_types(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
    expect_refused(f, EF_ECORRUPT, "19 values");
}

static void
refuses_more_than_sixteen_types(void **state)
{
    struct fixture *f = *state;
    char name[8];

    string(f, "");
    for (uint64_t i = 1; i <= 17; i++) {
        snprintf(name, sizeof(name), "t%d", (int)i);
        string(f, name);
        sample_type(f, i, 0);
    }
    expect_refused(f, EF_ELIMIT, "more than 16 sample types");
}

/* Field fault 6. */
static void
an_empty_profile_keeps_its_types(void **state)
{
    struct fixture *f = *state;

    head(f);
    number(&f->message, 1, 1);
    end(f, 3);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->type_count, 2);
    ef_buf_clear(&f->out);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &f->out, &f->err),
        EF_OK);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->type_count, 2);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[1].type), "cpu");
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[1].unit), "nanoseconds");
    assert_int_equal(f->profile->node_count, 1);
}

/* Field fault 7: all values 0 must still be a readable profile. */
static void
a_profile_of_zeros_can_be_written_and_read(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 2, 1, VALUES(0, 0));
    assert_int_equal(read_buf(f), EF_OK);
    ef_buf_clear(&f->out);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &f->out, NULL), EF_OK);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 0);
    assert_int_equal(f->profile->type_count, 2);
}

/* Field fault 8. */
static void
refuses_an_empty_file_and_a_gzip_of_nothing(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, EF_ECORRUPT, "the file is empty");
    assert_int_equal(ef_gzip_deflate((const uint8_t *)"", 0, &f->out, NULL), EF_OK);
    expect_refused(f, EF_ECORRUPT, "gzip stream is empty");
}

static void
refuses_a_profile_without_types(void **state)
{
    struct fixture *f = *state;

    string(f, "");
    expect_refused(f, EF_ECORRUPT, "no sample types");
}

/* Field fault 10. */
static void
mappings_that_differ_in_start_only_stay_apart(void **state)
{
    struct fixture *f = *state;

    head(f);
    for (uint64_t id = 1; id <= 2; id++) {
        number(&f->message, 1, id);
        number(&f->message, 2, 0x1000 * id);
        number(&f->message, 3, 0x9000);
        end(f, 3);
        location(f, id, id, 0x1500, NULL);
        sample(f, id, 0, VALUES(1, 1));
    }
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->mapping_count, 3);
    assert_int_equal(f->profile->node_count, 3);
}

/* Field fault 12: only the bad element goes. mapping_id 0 is legal. */
static void
elements_with_id_zero_are_dropped_alone(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    function(f, 0, 5);
    location(f, 0, 0, 0x77, NULL);
    number(&f->message, 2, 0x77);
    end(f, 3);
    ef_buf_clear(&f->inner);
    ef_buf_append(&f->inner, "\x02\x00\x01", 3);
    bytes(&f->message, 1, f->inner.data, f->inner.len);
    bytes(&f->message, 2, "\x05\x06", 2);
    end(f, 2);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->mapping_count, 1);
    assert_string_equal(stack_of(f->profile, 2), "work<main");
    assert_int_equal(value_at(f->profile, 2, 0), 5);
}

static void
a_location_that_says_nothing_is_unknown(void **state)
{
    struct fixture *f = *state;

    head(f);
    location(f, 1, 0, 0, NULL);
    location(f, 2, 0, 0, FUNCTIONS(0));
    sample(f, 1, 0, VALUES(1, 1));
    sample(f, 2, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 1), "(unknown)");
    assert_int_equal(value_at(f->profile, 1, 0), 2);
}

/* Field faults 13, 17: a sample, a location, but no table of mappings or functions. */
static void
reads_addresses_without_mappings_and_functions(void **state)
{
    struct fixture *f = *state;

    head(f);
    location(f, 1, 0, 0x10, NULL);
    location(f, 2, 7, 0x20, NULL);
    sample(f, 1, 2, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "0x10<0x20");
}

/* Field fault 19: a frame without mapping among native ones. */
static void
one_location_without_mapping_leaves_the_others_alone(void **state)
{
    struct fixture *f = *state;

    head(f);
    number(&f->message, 1, 1);
    number(&f->message, 5, 5);
    end(f, 3);
    location(f, 1, 1, 0x10, NULL);
    location(f, 2, 0, 0x20, NULL);
    sample(f, 1, 2, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "0x10 [main]<0x20");
}

/* Field fault 20: mapping ids are names, not places. */
static void
mapping_ids_may_be_any_number(void **state)
{
    struct fixture *f = *state;

    head(f);
    for (uint64_t id = 1; id <= 2; id++) {
        number(&f->message, 1, 1000 / id);
        number(&f->message, 5, 4 + id);
        end(f, 3);
    }
    location(f, 1, 500, 0x10, NULL);
    location(f, 2, 1000, 0x20, NULL);
    sample(f, 1, 2, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_string_equal(stack_of(f->profile, 2), "0x10 [work]<0x20 [main]");
}

static void
refuses_locations_and_functions_that_are_not_there(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 3, 0, VALUES(1, 1));
    expect_refused(f, EF_ECORRUPT, "location 3, which is not there");
    ef_buf_clear(&f->out);
    head(f);
    location(f, 1, 0, 0, FUNCTIONS(9));
    expect_refused(f, EF_ECORRUPT, "function 9, which is not there");
}

static void
refuses_ids_that_occur_twice(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    location(f, 2, 0, 0, FUNCTIONS(1));
    expect_refused(f, EF_ECORRUPT, "location id 2 occurs twice");
    ef_buf_clear(&f->out);
    two_functions(f);
    function(f, 2, 5);
    expect_refused(f, EF_ECORRUPT, "function id 2 occurs twice");
}

/* Field faults 15, 16: no period type; a string index that equals the size of the table. */
static void
a_missing_period_type_is_unknown(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->period_type.type, 0);
}

static void
refuses_string_indexes_outside_the_table(void **state)
{
    struct fixture *f = *state;

    head(f);
    function(f, 1, 7);
    expect_refused(f, EF_ECORRUPT, "string 7 is outside the table of 7");
    ef_buf_clear(&f->out);
    head(f);
    function(f, 1, UINT64_MAX);
    expect_refused(f, EF_ECORRUPT, "string -1 is outside");
    ef_buf_clear(&f->out);
    head(f);
    sample_type(f, 9, 1);
    expect_refused(f, EF_ECORRUPT, "sample type: string 9");
    ef_buf_clear(&f->out);
    head(f);
    number(&f->message, 1, 7);
    end(f, 11);
    expect_refused(f, EF_ECORRUPT, "period type: string 7");
    ef_buf_clear(&f->out);
    head(f);
    number(&f->message, 1, 1);
    number(&f->message, 6, 8);
    end(f, 3);
    expect_refused(f, EF_ECORRUPT, "build id of a mapping: string 8");
}

static void
refuses_a_first_string_that_is_not_empty(void **state)
{
    struct fixture *f = *state;

    string(f, "samples");
    sample_type(f, 0, 0);
    expect_refused(f, EF_ECORRUPT, "first string is not empty");
}

/* Field fault 22: a length of 2^40 allocates nothing and is refused. */
static void
refuses_lengths_beyond_the_file(void **state)
{
    struct fixture *f = *state;

    head(f);
    ef_buf_put_varint(&f->out, 6 << 3 | 2);
    ef_buf_put_varint(&f->out, UINT64_C(1) << 40);
    expect_refused(f, EF_ECORRUPT, "damaged");
    ef_buf_clear(&f->out);
    head(f);
    ef_buf_append(&f->message, "\x0a\xff\xff\xff\xff\xff\x1f", 7);
    end(f, 2);
    expect_refused(f, EF_ECORRUPT, "sample 0 is damaged");
}

static void
refuses_a_decompression_bomb(void **state)
{
    struct fixture *f = *state;
    uint8_t *zeros = calloc(1, BYTES_MAX + 1);

    assert_non_null(zeros);
    assert_int_equal(ef_gzip_deflate(zeros, BYTES_MAX + 1, &f->out, NULL), EF_OK);
    free(zeros);
    assert_true(f->out.len < BYTES_MAX / 500);
    expect_refused(f, EF_ELIMIT, "bytes after decompression");
}

static void
refuses_damaged_gzip(void **state)
{
    struct fixture *f = *state;
    struct ef_buf gzip;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    ef_buf_init(&gzip, BYTES_MAX);
    assert_int_equal(ef_gzip_deflate(f->out.data, f->out.len, &gzip, NULL), EF_OK);
    ef_buf_fini(&f->out);
    f->out = gzip;
    f->out.len -= 3;
    expect_refused(f, EF_ECORRUPT, "ends too early");
    f->out.len += 3;
    f->out.data[f->out.len - 6] ^= 1;
    expect_refused(f, EF_ECORRUPT, "gzip: damaged");
    f->out.data[f->out.len - 6] ^= 1;
    ef_buf_append_str(&f->out, "garbage after the end");
    expect_refused(f, EF_ECORRUPT, "other data after its end");
}

static void
refuses_garbage_after_a_plain_profile(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 1));
    ef_buf_append(&f->out, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11);
    expect_refused(f, EF_ECORRUPT, "damaged");
    f->out.len -= 11;
    ef_buf_append_str(&f->out, "\x07 group");
    expect_refused(f, EF_ECORRUPT, "damaged");
}

static void
refuses_text(void **state)
{
    struct fixture *f = *state;

    ef_buf_append_str(&f->out, "main;work 12\nmain 3\n");
    assert_false(ef_pprof_sniff(f->out.data, f->out.len));
    expect_refused(f, EF_ECORRUPT, "not a profile");
}

/* Every prefix of a good file is refused or read; none crashes (run under the sanitizers). */
static void
every_prefix_is_survived(void **state)
{
    struct fixture *f = *state;
    size_t len;
    int good = 0;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    len = f->out.len;
    for (size_t i = 1; i <= len; i++) {
        uint8_t *exact = malloc(i);
        struct ef_profile *profile = NULL;
        memcpy(exact, f->out.data, i);
        good +=
            ef_pprof_read(exact, i, BYTES_MAX, &ef_profile_limits_default, &profile, NULL) == EF_OK;
        ef_profile_free(profile);
        free(exact);
    }
    assert_in_range(good, 1, 30); /* Ends between two fields are whole messages to protobuf. */
}

static void
refuses_members_of_the_wrong_wire_type(void **state)
{
    struct fixture *f = *state;

    head(f);
    bytes(&f->message, 1, "x", 1);
    end(f, 5);
    expect_refused(f, EF_ECORRUPT, "function 0 is damaged");
    ef_buf_clear(&f->out);
    head(f);
    number(&f->out, 4, 5);
    expect_refused(f, EF_ECORRUPT, "location 0 is damaged");
}

static void
stacks_deeper_than_the_limit_are_refused(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    ef_buf_clear(&f->inner);
    for (int i = 0; i < EF_PROFILE_DEPTH_MAX; i++)
        ef_buf_put_varint(&f->inner, 1);
    bytes(&f->message, 1, f->inner.data, f->inner.len);
    bytes(&f->message, 2, "\x01\x01", 2);
    end(f, 2);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->node_count, EF_PROFILE_DEPTH_MAX + 1);
    ef_buf_put_varint(&f->inner, 1);
    bytes(&f->message, 1, f->inner.data, f->inner.len);
    bytes(&f->message, 2, "\x01\x01", 2);
    end(f, 2);
    expect_refused(f, EF_ELIMIT, "sample 1 is deeper than 2048 frames");
}

static void
limits_of_the_model_hold(void **state)
{
    struct fixture *f = *state;
    const struct ef_profile_limits few_nodes = {1, 10, 1000};
    const struct ef_profile_limits few_functions = {10, 1, 1000};
    const struct ef_profile_limits few_bytes = {10, 10, 60};
    struct ef_profile *profile = NULL;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    assert_int_equal(ef_pprof_read(f->out.data, f->out.len, BYTES_MAX, &few_nodes, &profile, NULL),
                     EF_ELIMIT);
    assert_int_equal(
        ef_pprof_read(f->out.data, f->out.len, BYTES_MAX, &few_functions, &profile, NULL),
        EF_ELIMIT);
    assert_int_equal(ef_pprof_read(f->out.data, f->out.len, BYTES_MAX, &few_bytes, &profile, NULL),
                     EF_ELIMIT);
    assert_int_equal(
        ef_pprof_read(f->out.data, f->out.len, 10, &ef_profile_limits_default, &profile, NULL),
        EF_ELIMIT);
    assert_null(profile);
}

/* Field fault 23: more than 1,024 roots. */
static void
reads_five_thousand_roots(void **state)
{
    struct fixture *f = *state;

    head(f);
    for (uint64_t i = 1; i <= 5000; i++) {
        location(f, i, 0, i, NULL);
        sample(f, i, 0, VALUES(1, 1));
    }
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->node_count, 5001);
    assert_int_equal(ef_profile_total(f->profile, 0), 5000);
}

/* Field faults 26, 30: negative values are numbers like others and net out. */
static void
negative_values_net_out_in_any_order(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, 100));
    sample(f, 1, 0, VALUES(1, -150));
    sample(f, 1, 0, VALUES(1, 200));
    sample(f, 2, 0, VALUES(-1, -7));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(value_at(f->profile, 1, 1), 150);
    assert_int_equal(value_at(f->profile, 2, 1), -7);
    ef_buf_clear(&f->out);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &f->out, NULL), EF_OK);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(value_at(f->profile, 2, 0), -1);
    assert_int_equal(ef_profile_total(f->profile, 1), 143);
}

static void
refuses_values_whose_sum_does_not_fit(void **state)
{
    struct fixture *f = *state;

    two_functions(f);
    sample(f, 1, 0, VALUES(1, INT64_MAX));
    sample(f, 1, 0, VALUES(1, 1));
    expect_refused(f, EF_ELIMIT, "does not fit 64 bits");
}

static void
a_sample_without_a_stack_counts_for_the_whole(void **state)
{
    struct fixture *f = *state;

    head(f);
    sample(f, 0, 0, VALUES(4, 5));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 4);
    ef_buf_clear(&f->out);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &f->out, NULL), EF_OK);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(value_at(f->profile, 0, 1), 5);
}

static void
lines_that_cannot_be_are_unknown(void **state)
{
    struct fixture *f = *state;

    head(f);
    number(&f->message, 1, 1);
    number(&f->message, 2, 5);
    number(&f->message, 5, UINT64_MAX);
    end(f, 5);
    location(f, 1, 0, 0, FUNCTIONS(1));
    sample(f, 1, 0, VALUES(1, 1));
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->functions[1].start_line, 0);
}

static void
the_writer_names_program_and_build_in_a_mapping(void **state)
{
    struct fixture *f = *state;
    const struct ef_pprof_about about = {.build = "v41", .program = "shop", .comment = "hello"};
    const struct ef_profile_mapping *mapping;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    assert_int_equal(read_buf(f), EF_OK);
    ef_buf_clear(&f->out);
    assert_int_equal(ef_pprof_write(f->profile, &about, BYTES_MAX, &f->out, NULL), EF_OK);
    assert_int_equal(read_buf(f), EF_OK);
    assert_int_equal(f->profile->mapping_count, 2);
    mapping = &f->profile->mappings[1];
    assert_string_equal(ef_profile_string(f->profile, mapping->file), "shop");
    assert_string_equal(ef_profile_string(f->profile, mapping->build_id), "v41");
    assert_string_equal(stack_of(f->profile, 2), "work<main");
    /* The frame says nothing of the mapping, so that it equals the frame of before. */
    assert_int_equal(f->profile->frames[1].mapping, 0);
}

static void
the_writer_gives_the_same_bytes_again(void **state)
{
    struct fixture *f = *state;
    struct ef_buf first, second;

    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    assert_int_equal(read_buf(f), EF_OK);
    ef_buf_init(&first, BYTES_MAX);
    ef_buf_init(&second, BYTES_MAX);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &first, NULL), EF_OK);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &second, NULL), EF_OK);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    ef_buf_fini(&first);
    ef_buf_fini(&second);
}

static void
the_writer_refuses_what_it_cannot_do(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *no_types = NULL;
    struct ef_buf small;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &no_types, NULL), EF_OK);
    assert_int_equal(
        ef_pprof_write(no_types, &(struct ef_pprof_about){0}, BYTES_MAX, &f->out, &f->err),
        EF_EINVAL);
    ef_profile_free(no_types);
    two_functions(f);
    sample(f, 2, 1, VALUES(3, 3000));
    assert_int_equal(read_buf(f), EF_OK);
    ef_buf_init(&small, 20);
    assert_int_equal(
        ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, BYTES_MAX, &small, &f->err),
        EF_ELIMIT);
    assert_int_equal(small.len, 0);
    ef_buf_fini(&small);
    ef_buf_clear(&f->out);
    assert_int_equal(ef_pprof_write(f->profile, &(struct ef_pprof_about){0}, 30, &f->out, &f->err),
                     EF_ELIMIT);
    assert_int_equal(f->out.len, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reads_types_stacks_lines_and_times),
        TEST(reads_gzip_alike),
        TEST(reads_strings_that_come_last),
        TEST(reads_unpacked_lists),
        TEST(skips_fields_it_does_not_know),
        TEST(line_zero_of_a_location_is_the_leaf),
        TEST(sparse_and_huge_ids_are_found),
        TEST(anonymous_becomes_the_empty_name),
        TEST(labels_are_dropped_and_counted),
        TEST(refuses_two_profiles_one_after_another),
        TEST(refuses_two_empty_profiles_with_other_types),
        TEST(refuses_an_empty_profile_in_front_of_another),
        TEST(refuses_two_periods),
        TEST(refuses_two_gzip_members_that_are_two_profiles),
        TEST(reads_one_profile_in_two_gzip_members),
        TEST(refuses_fewer_or_more_values_than_types),
        TEST(refuses_more_values_than_there_can_be_types),
        TEST(refuses_more_than_sixteen_types),
        TEST(an_empty_profile_keeps_its_types),
        TEST(a_profile_of_zeros_can_be_written_and_read),
        TEST(refuses_an_empty_file_and_a_gzip_of_nothing),
        TEST(refuses_a_profile_without_types),
        TEST(mappings_that_differ_in_start_only_stay_apart),
        TEST(elements_with_id_zero_are_dropped_alone),
        TEST(a_location_that_says_nothing_is_unknown),
        TEST(reads_addresses_without_mappings_and_functions),
        TEST(one_location_without_mapping_leaves_the_others_alone),
        TEST(mapping_ids_may_be_any_number),
        TEST(refuses_locations_and_functions_that_are_not_there),
        TEST(refuses_ids_that_occur_twice),
        TEST(a_missing_period_type_is_unknown),
        TEST(refuses_string_indexes_outside_the_table),
        TEST(refuses_a_first_string_that_is_not_empty),
        TEST(refuses_lengths_beyond_the_file),
        TEST(refuses_a_decompression_bomb),
        TEST(refuses_damaged_gzip),
        TEST(refuses_garbage_after_a_plain_profile),
        TEST(refuses_text),
        TEST(every_prefix_is_survived),
        TEST(refuses_members_of_the_wrong_wire_type),
        TEST(stacks_deeper_than_the_limit_are_refused),
        TEST(limits_of_the_model_hold),
        TEST(reads_five_thousand_roots),
        TEST(negative_values_net_out_in_any_order),
        TEST(refuses_values_whose_sum_does_not_fit),
        TEST(a_sample_without_a_stack_counts_for_the_whole),
        TEST(lines_that_cannot_be_are_unknown),
        TEST(the_writer_names_program_and_build_in_a_mapping),
        TEST(the_writer_gives_the_same_bytes_again),
        TEST(the_writer_refuses_what_it_cannot_do),
    };

    return cmocka_run_group_tests_name("proto.pprof", tests, NULL, NULL);
}
