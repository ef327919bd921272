/*
 * The model of a profile: what is stored once, what is refused, merging, sums per function.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/model/profile.h"

static struct ef_profile *
open_profile(const char *type, const char *unit)
{
    struct ef_profile *profile = NULL;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
    if (type != NULL)
        assert_int_equal(ef_profile_add_type(profile, type, unit, NULL), EF_OK);
    return profile;
}

static uint32_t
add_string(struct ef_profile *profile, const char *text)
{
    uint32_t id = 0;

    assert_int_equal(ef_profile_add_string(profile, text, strlen(text), &id, NULL), EF_OK);
    return id;
}

static uint32_t
add_function_frame(struct ef_profile *profile, const char *name, uint32_t line)
{
    struct ef_profile_function function = {.name = add_string(profile, name), .start_line = 1};
    struct ef_profile_frame frame = {.line = line};
    uint32_t id = 0;

    assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL), EF_OK);
    assert_int_equal(ef_profile_add_frame(profile, &frame, &id, NULL), EF_OK);
    return id;
}

/* Adds a value at a stack given as "a;b;c". */
static uint32_t
add_stack(struct ef_profile *profile, const char *stack, int64_t value)
{
    char *copy = strdup(stack), *rest = copy, *name;
    uint32_t node = 0;

    while ((name = strsep(&rest, ";")) != NULL) {
        if (*name != '\0')
            assert_int_equal(ef_profile_add_node(profile, node,
                                                 add_function_frame(profile, name, 0), &node, NULL),
                             EF_OK);
    }
    assert_int_equal(ef_profile_add_value(profile, node, 0, value, NULL), EF_OK);
    free(copy);
    return node;
}

static int64_t
value_at(const struct ef_profile *profile, uint32_t node)
{
    return profile->values[(size_t)node * profile->type_count];
}

/* The row of a function, or fails. */
static struct ef_profile_row
row_of(const struct ef_profile *profile, const char *name)
{
    struct ef_profile_row *rows = NULL, found = {0};
    size_t count = 0;
    char buf[64];

    assert_int_equal(ef_profile_rows(profile, &rows, &count, NULL), EF_OK);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ef_profile_frame_name(profile, rows[i].frame, buf, sizeof(buf)), name) == 0)
            found = rows[i];
    }
    free(rows);
    assert_int_not_equal(found.frame, 0);
    return found;
}

static void
open_gives_a_root_and_nothing_else(void **state)
{
    struct ef_profile *profile = open_profile(NULL, NULL);

    (void)state;
    assert_int_equal(profile->node_count, 1);
    assert_int_equal(profile->type_count, 0);
    assert_string_equal(ef_profile_string(profile, 0), "");
    assert_string_equal(ef_profile_string(profile, 77), "");
    assert_int_equal(ef_profile_total(profile, 0), 0);
    ef_profile_free(profile);
    ef_profile_free(NULL);
}

static void
equal_things_are_stored_once(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    uint32_t string, node;

    (void)state;
    string = add_string(profile, "handle");
    assert_int_equal(add_string(profile, "handle"), string);
    assert_int_not_equal(add_string(profile, "handler"), string);
    node = add_stack(profile, "a;b", 1);
    assert_int_equal(add_stack(profile, "a;b", 2), node);
    assert_int_equal(value_at(profile, node), 3);
    assert_int_equal(profile->node_count, 3);
    assert_int_equal(profile->function_count, 3);
    assert_int_equal(profile->frame_count, 3);
    ef_profile_free(profile);
}

/* Goal: hash tables keep everything across their growth. 20,000 roots, two thirds of them deep. */
static void
twenty_thousand_stacks_are_found_again(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    static uint32_t nodes[20000];

    (void)state;
    for (int i = 0; i < 20000; i++) {
        char stack[64];
        snprintf(stack, sizeof(stack), "root%d;f%d", i, i % 3);
        nodes[i] = add_stack(profile, stack, i);
    }
    for (int i = 0; i < 20000; i++) {
        char stack[64];
        snprintf(stack, sizeof(stack), "root%d;f%d", i, i % 3);
        assert_int_equal(add_stack(profile, stack, 1), nodes[i]);
        assert_int_equal(value_at(profile, nodes[i]), i + 1);
    }
    assert_int_equal(ef_profile_total(profile, 0), 20000 * 19999 / 2 + 20000);
    assert_true(ef_profile_bytes(profile) > 40000 * sizeof(struct ef_profile_node));
    ef_profile_free(profile);
}

static void
parents_have_smaller_numbers_than_children(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");

    (void)state;
    add_stack(profile, "a;b;c;d", 1);
    add_stack(profile, "a;x", 1);
    add_stack(profile, "a;b;y", 1);
    for (uint32_t i = 1; i < profile->node_count; i++)
        assert_true(profile->nodes[i].parent < i);
    ef_profile_free(profile);
}

static void
bad_utf8_and_nul_become_question_marks(void **state)
{
    struct ef_profile *profile = open_profile(NULL, NULL);
    uint32_t id = 0;

    (void)state;
    assert_int_equal(ef_profile_add_string(profile, "a\xff\0b\xc3\xa4\xc3", 7, &id, NULL), EF_OK);
    assert_string_equal(ef_profile_string(profile, id), "a??b\xc3\xa4?");
    ef_profile_free(profile);
}

static void
ids_that_are_not_there_are_refused(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    struct ef_err err = {0};
    uint32_t id = 99, frame = add_function_frame(profile, "f", 0);

    (void)state;
    assert_int_equal(
        ef_profile_add_function(profile, &(struct ef_profile_function){.name = 50}, &id, &err),
        EF_EINVAL);
    assert_int_equal(
        ef_profile_add_function(profile, &(struct ef_profile_function){.file = 50}, &id, &err),
        EF_EINVAL);
    assert_int_equal(ef_profile_add_function(
                         profile, &(struct ef_profile_function){.system_name = 50}, &id, &err),
                     EF_EINVAL);
    assert_int_equal(
        ef_profile_add_mapping(profile, &(struct ef_profile_mapping){.file = 50}, &id, &err),
        EF_EINVAL);
    assert_int_equal(
        ef_profile_add_frame(profile, &(struct ef_profile_frame){.function = 9}, &id, &err),
        EF_EINVAL);
    assert_int_equal(
        ef_profile_add_frame(profile, &(struct ef_profile_frame){.mapping = 9}, &id, &err),
        EF_EINVAL);
    assert_int_equal(ef_profile_add_node(profile, 7, frame, &id, &err), EF_EINVAL);
    assert_int_equal(ef_profile_add_node(profile, 0, 0, &id, &err), EF_EINVAL);
    assert_int_equal(ef_profile_add_node(profile, 0, 77, &id, &err), EF_EINVAL);
    assert_int_equal(ef_profile_add_value(profile, 5, 0, 1, &err), EF_EINVAL);
    assert_int_equal(ef_profile_add_value(profile, 0, 3, 1, &err), EF_EINVAL);
    assert_int_equal(id, 99);
    ef_profile_free(profile);
}

static void
types_come_before_stacks_and_are_at_most_sixteen(void **state)
{
    struct ef_profile *profile = open_profile(NULL, NULL);
    struct ef_err err = {0};

    (void)state;
    for (int i = 0; i < EF_PROFILE_TYPES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t%d", i);
        assert_int_equal(ef_profile_add_type(profile, name, "count", NULL), EF_OK);
        assert_int_equal(ef_profile_add_type(profile, name, "count", &err),
                         i + 1 < EF_PROFILE_TYPES_MAX ? EF_EINVAL : EF_ELIMIT);
    }
    assert_int_equal(ef_profile_add_type(profile, "t", "count", &err), EF_ELIMIT);
    add_stack(profile, "a", 1);
    assert_int_equal(ef_profile_add_type(profile, "t", "count", &err), EF_EINVAL);
    ef_profile_free(profile);
}

static void
a_type_added_after_a_value_of_the_root_keeps_it(void **state)
{
    struct ef_profile *profile = open_profile("a", "count");

    (void)state;
    assert_int_equal(ef_profile_add_value(profile, 0, 0, 5, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "b", "count", NULL), EF_OK);
    assert_int_equal(ef_profile_total(profile, 0), 5);
    assert_int_equal(ef_profile_total(profile, 1), 0);
    ef_profile_free(profile);
}

/* Goal: each limit gives EF_ELIMIT, changes nothing, and what is there stays usable. */
static void
limits_are_kept(void **state)
{
    const struct ef_profile_limits limits = {3, 2, 200};
    struct ef_profile *profile = NULL;
    struct ef_err err = {0};
    uint32_t id = 99, frame, string;

    (void)state;
    assert_int_equal(ef_profile_open(&limits, &profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "n", "count", NULL), EF_OK);
    frame = add_function_frame(profile, "f", 1);
    assert_int_equal(add_function_frame(profile, "f", 2), 2);
    assert_int_equal(
        ef_profile_add_frame(profile, &(struct ef_profile_frame){1, 3, 0, 0, 0}, &id, &err),
        EF_ELIMIT);
    string = add_string(profile, "g");
    assert_int_equal(
        ef_profile_add_function(profile, &(struct ef_profile_function){.name = string}, &id, NULL),
        EF_OK);
    assert_int_equal(
        ef_profile_add_function(profile, &(struct ef_profile_function){.file = string}, &id, &err),
        EF_ELIMIT);
    assert_non_null(strstr(err.msg, "more than 2 functions"));
    for (uint32_t node = 0; node < 3; node++)
        assert_int_equal(ef_profile_add_node(profile, node, frame, &id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_node(profile, 3, frame, &id, &err), EF_ELIMIT);
    assert_int_equal(profile->node_count, 4);
    assert_int_equal(ef_profile_add_node(profile, 2, frame, &id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_string(profile, "0123456789", 10, &id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_string(profile,
                                           "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
                                           "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
                                           104, &id, &err),
                     EF_ELIMIT);
    assert_int_equal(ef_profile_add_string(profile, "0123456789", 10, &id, NULL), EF_OK);
    ef_profile_free(profile);
}

static void
a_sum_beyond_64_bits_is_refused_and_changes_nothing(void **state)
{
    struct ef_profile *profile = open_profile("cpu", "nanoseconds");
    struct ef_err err = {0};
    uint32_t node = add_stack(profile, "a", INT64_MAX);

    (void)state;
    assert_int_equal(ef_profile_add_value(profile, node, 0, 1, &err), EF_ELIMIT);
    assert_int_equal(value_at(profile, node), INT64_MAX);
    assert_int_equal(ef_profile_add_value(profile, node, 0, -1, &err), EF_OK);
    ef_profile_free(profile);
}

static void
a_total_saturates_whatever_the_order_of_signs(void **state)
{
    struct ef_profile *profile = open_profile("cpu", "nanoseconds");

    (void)state;
    add_stack(profile, "a", INT64_MAX);
    add_stack(profile, "b", INT64_MAX);
    assert_int_equal(ef_profile_total(profile, 0), INT64_MAX);
    add_stack(profile, "c", -INT64_MAX);
    assert_int_equal(ef_profile_total(profile, 0), INT64_MAX);
    add_stack(profile, "d", -INT64_MAX);
    assert_int_equal(ef_profile_total(profile, 0), 0);
    add_stack(profile, "e", INT64_MIN);
    add_stack(profile, "f", -5);
    assert_int_equal(ef_profile_total(profile, 0), INT64_MIN);
    ef_profile_free(profile);
}

static void
merge_adds_values_of_equal_stacks(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");
    uint32_t node = add_stack(a, "x;y", 3);

    (void)state;
    add_stack(b, "z", 1); /* so that ids of a and b differ */
    add_stack(b, "x;y", 4);
    add_stack(b, "", 7);
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(value_at(a, node), 7);
    assert_int_equal(value_at(a, 0), 7);
    assert_int_equal(ef_profile_total(a, 0), 15);
    assert_int_equal(row_of(a, "z").total[0], 1);
    ef_profile_free(a);
    ef_profile_free(b);
}

static void
merge_with_a_factor_scales_and_minus_one_makes_a_difference(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");

    (void)state;
    add_stack(a, "x", 10);
    add_stack(b, "x", 4);
    add_stack(b, "only;b", 6);
    b->duration_ns = 5;
    assert_int_equal(ef_profile_merge(a, b, -1, NULL), EF_OK);
    assert_int_equal(row_of(a, "x").self[0], 6);
    assert_int_equal(row_of(a, "b").self[0], -6);
    assert_int_equal(row_of(a, "only").total[0], -6);
    assert_int_equal(a->duration_ns, 0);
    assert_int_equal(ef_profile_merge(a, b, 3, NULL), EF_OK);
    assert_int_equal(row_of(a, "x").self[0], 18);
    assert_int_equal(a->duration_ns, 5);
    ef_profile_free(a);
    ef_profile_free(b);
}

static void
merge_of_a_profile_into_itself_doubles_it(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");

    (void)state;
    add_stack(a, "x;y", 10);
    add_stack(a, "x", 1);
    assert_int_equal(ef_profile_merge(a, a, 1, NULL), EF_OK);
    assert_int_equal(ef_profile_total(a, 0), 22);
    assert_int_equal(a->node_count, 3);
    ef_profile_free(a);
}

/* Field fault 1: the first has no mapping and no samples, the second has both. */
static void
merge_into_an_empty_profile_brings_mappings_and_samples(void **state)
{
    struct ef_profile *empty = open_profile("samples", "count");
    struct ef_profile *full = open_profile("samples", "count");
    struct ef_profile_frame frame = {.address = 0x1234};
    uint32_t id, node;

    (void)state;
    assert_int_equal(
        ef_profile_add_mapping(
            full,
            &(struct ef_profile_mapping){.start = 0x1000, .file = add_string(full, "libc.so")},
            &frame.mapping, NULL),
        EF_OK);
    assert_int_equal(ef_profile_add_frame(full, &frame, &id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_node(full, 0, id, &node, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(full, node, 0, 2, NULL), EF_OK);
    assert_int_equal(ef_profile_merge(empty, full, 1, NULL), EF_OK);
    assert_int_equal(empty->mapping_count, 2);
    assert_int_equal(row_of(empty, "0x1234 [libc.so]").self[0], 2);
    assert_int_equal(ef_profile_merge(full, empty, 1, NULL), EF_OK);
    assert_int_equal(full->mapping_count, 2);
    assert_int_equal(full->node_count, 2);
    ef_profile_free(empty);
    ef_profile_free(full);
}

static void
merge_into_a_profile_without_types_takes_the_types(void **state)
{
    struct ef_profile *fresh = open_profile(NULL, NULL);
    struct ef_profile *other = open_profile("samples", "count");

    (void)state;
    assert_int_equal(ef_profile_add_type(other, "cpu", "nanoseconds", NULL), EF_OK);
    add_stack(other, "a", 2);
    assert_int_equal(ef_profile_merge(fresh, other, 1, NULL), EF_OK);
    assert_int_equal(fresh->type_count, 2);
    assert_string_equal(ef_profile_string(fresh, fresh->types[1].unit), "nanoseconds");
    assert_int_equal(ef_profile_total(fresh, 0), 2);
    ef_profile_free(fresh);
    ef_profile_free(other);
}

static void
merge_refuses_other_types_and_names_them(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("cpu", "nanoseconds");
    struct ef_profile *unit = open_profile("samples", "seconds");
    struct ef_profile *two = open_profile("samples", "count");
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(ef_profile_add_type(two, "cpu", "nanoseconds", NULL), EF_OK);
    assert_int_equal(ef_profile_merge(a, b, 1, &err), EF_EINVAL);
    assert_non_null(strstr(err.msg, "'samples/count' and 'cpu/nanoseconds'"));
    assert_int_equal(ef_profile_merge(a, unit, 1, &err), EF_EINVAL);
    assert_int_equal(ef_profile_merge(a, two, 1, &err), EF_EINVAL);
    ef_profile_free(a);
    ef_profile_free(b);
    ef_profile_free(unit);
    ef_profile_free(two);
}

/* Field fault 13: samples, and no mapping in either; into a profile that has one as well. */
static void
merge_of_profiles_without_mappings_adds_them(void **state)
{
    struct ef_profile *bare = open_profile("samples", "count");
    struct ef_profile *other = open_profile("samples", "count");
    struct ef_profile_mapping mapping = {.start = 0x1000, .limit = 0x2000};
    struct ef_err err = {0};
    uint32_t id;

    (void)state;
    add_stack(bare, "a;b", 1);
    add_stack(other, "a;b", 2);
    add_stack(other, "a;c", 4);
    assert_int_equal(ef_profile_merge(bare, other, 1, &err), EF_OK);
    assert_int_equal(row_of(bare, "b").self[0], 3);
    assert_int_equal(bare->mapping_count, other->mapping_count);
    assert_int_equal(ef_profile_add_mapping(other, &mapping, &id, &err), EF_OK);
    assert_int_equal(ef_profile_merge(other, bare, 1, &err), EF_OK);
    assert_int_equal(row_of(other, "c").self[0], 8);
    assert_int_equal(row_of(other, "a").total[0], 13);
    ef_profile_free(bare);
    ef_profile_free(other);
}

/* Field fault 15: no period type in both, and in one of them. */
static void
merge_takes_a_missing_period_type_for_any(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");
    struct ef_profile *c = open_profile("samples", "count");

    (void)state;
    add_stack(a, "x", 1);
    add_stack(b, "x", 1);
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    add_string(b, "shift"); /* other ids than in a */
    b->period_type.type = add_string(b, "cpu");
    b->period_type.unit = add_string(b, "nanoseconds");
    b->period = 1000;
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_string_equal(ef_profile_string(a, a->period_type.type), "cpu");
    assert_int_equal(a->period, 1000);
    assert_int_equal(ef_profile_merge(b, c, 1, NULL), EF_OK);
    c->period_type.type = add_string(c, "space");
    assert_int_equal(ef_profile_merge(a, c, 1, NULL), EF_EINVAL);
    ef_profile_free(a);
    ef_profile_free(b);
    ef_profile_free(c);
}

static void
merge_refuses_values_that_would_overflow(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");

    (void)state;
    add_stack(b, "x", INT64_MIN);
    assert_int_equal(ef_profile_merge(a, b, -1, NULL), EF_ELIMIT);
    ef_profile_free(a);
    a = open_profile("samples", "count");
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_ELIMIT);
    ef_profile_free(a);
    ef_profile_free(b);
}

static void
merge_keeps_the_earlier_time_and_adds_durations(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");

    (void)state;
    b->time_ns = 100;
    b->duration_ns = 10;
    b->samples = 3;
    b->labels_dropped = 2;
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    b->time_ns = 50;
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(a->time_ns, 50);
    assert_int_equal(a->duration_ns, 20);
    assert_int_equal(a->samples, 6);
    assert_int_equal(a->labels_dropped, 4);
    b->duration_ns = INT64_MAX;
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(a->duration_ns, INT64_MAX);
    ef_profile_free(a);
    ef_profile_free(b);
}

/* Field fault 10: the same library at two bases stays two mappings. */
static void
merge_keeps_mappings_apart_that_differ_in_start_only(void **state)
{
    struct ef_profile *a = open_profile("samples", "count");
    struct ef_profile *b = open_profile("samples", "count");
    uint32_t id;

    (void)state;
    assert_int_equal(
        ef_profile_add_mapping(a, &(struct ef_profile_mapping){0x1000, 0x2000, 0, 0, 0}, &id, NULL),
        EF_OK);
    assert_int_equal(
        ef_profile_add_mapping(b, &(struct ef_profile_mapping){0x5000, 0x6000, 0, 0, 0}, &id, NULL),
        EF_OK);
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(ef_profile_merge(a, b, 1, NULL), EF_OK);
    assert_int_equal(a->mapping_count, 3);
    ef_profile_free(a);
    ef_profile_free(b);
}

/* Field fault 34: total of a recursive function is at most the whole. */
static void
rows_count_recursion_once(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    struct ef_profile_row fib, other;

    (void)state;
    add_stack(profile, "main;fib", 10);
    add_stack(profile, "main;fib;fib", 20);
    add_stack(profile, "main;fib;fib;fib", 40);
    add_stack(profile, "main;fib;other;fib", 5);
    add_stack(profile, "main;other", 1);
    fib = row_of(profile, "fib");
    other = row_of(profile, "other");
    assert_int_equal(fib.self[0], 75);
    assert_int_equal(fib.total[0], 75);
    assert_int_equal(other.self[0], 1);
    assert_int_equal(other.total[0], 6);
    assert_int_equal(row_of(profile, "main").total[0], 76);
    assert_int_equal(row_of(profile, "main").self[0], 0);
    ef_profile_free(profile);
}

/* Field fault 37: two lines of one function are one row, and its self time counts once. */
static void
rows_join_lines_of_one_function(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    struct ef_profile_row row;
    uint32_t node;

    (void)state;
    for (uint32_t line = 10; line < 12; line++) {
        assert_int_equal(
            ef_profile_add_node(profile, 0, add_function_frame(profile, "f", line), &node, NULL),
            EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 0, 5, NULL), EF_OK);
    }
    row = row_of(profile, "f");
    assert_int_equal(row.self[0], 10);
    assert_int_equal(row.total[0], 10);
    ef_profile_free(profile);
}

static void
rows_come_in_order_of_first_appearance_and_without_the_root(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    struct ef_profile_row *rows = NULL;
    size_t count = 77;
    char buf[64];

    (void)state;
    add_stack(profile, "", 5);
    assert_int_equal(ef_profile_rows(profile, &rows, &count, NULL), EF_OK);
    assert_int_equal(count, 0);
    free(rows);
    add_stack(profile, "c;b", 1);
    add_stack(profile, "a;b", 1);
    assert_int_equal(ef_profile_rows(profile, &rows, &count, NULL), EF_OK);
    assert_int_equal(count, 3);
    assert_string_equal(ef_profile_frame_name(profile, rows[0].frame, buf, sizeof(buf)), "c");
    assert_string_equal(ef_profile_frame_name(profile, rows[1].frame, buf, sizeof(buf)), "b");
    assert_string_equal(ef_profile_frame_name(profile, rows[2].frame, buf, sizeof(buf)), "a");
    assert_int_equal(rows[1].total[0], 2);
    free(rows);
    ef_profile_free(profile);
}

/* Field faults 26, 29, 30: negative values net out, in the tree and in the sums above it. */
static void
negative_values_net_out(void **state)
{
    struct ef_profile *profile = open_profile("alloc_space", "bytes");

    (void)state;
    add_stack(profile, "a;b", 100);
    add_stack(profile, "a;b", -150);
    add_stack(profile, "a;b", 200);
    add_stack(profile, "a;c", -50);
    assert_int_equal(row_of(profile, "b").self[0], 150);
    assert_int_equal(row_of(profile, "c").total[0], -50);
    assert_int_equal(row_of(profile, "a").total[0], 100);
    ef_profile_free(profile);
}

/* A stack of 200,000 frames: nothing here may recurse in C. */
static void
very_deep_stacks_are_summed_without_recursion(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    uint32_t frame = add_function_frame(profile, "f", 0), node = 0;

    (void)state;
    for (int i = 0; i < 200000; i++)
        assert_int_equal(ef_profile_add_node(profile, node, frame, &node, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(profile, node, 0, 3, NULL), EF_OK);
    assert_int_equal(row_of(profile, "f").total[0], 3);
    ef_profile_free(profile);
}

static void
names_of_frames_are_shown_as_people_expect(void **state)
{
    struct ef_profile *profile = open_profile("samples", "count");
    struct ef_profile_frame frame = {.address = 0xab};
    struct ef_profile_function function = {.system_name = add_string(profile, "_Zraw")};
    uint32_t id = 0;
    char buf[64];

    (void)state;
    id = add_function_frame(profile, "", 0);
    assert_string_equal(ef_profile_frame_name(profile, id, buf, sizeof(buf)), "(anonymous)");
    assert_int_equal(ef_profile_add_frame(profile, &frame, &id, NULL), EF_OK);
    assert_string_equal(ef_profile_frame_name(profile, id, buf, sizeof(buf)), "0xab");
    assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL), EF_OK);
    assert_int_equal(ef_profile_add_frame(profile, &frame, &id, NULL), EF_OK);
    assert_string_equal(ef_profile_frame_name(profile, id, buf, sizeof(buf)), "_Zraw");
    assert_string_equal(ef_profile_frame_name(profile, 0, buf, sizeof(buf)), "(unknown)");
    assert_string_equal(ef_profile_frame_name(profile, 999, buf, sizeof(buf)), "(unknown)");
    ef_profile_free(profile);
}

/* Goal: merging sums like plain arithmetic, whatever the order. Random stacks over few names. */
static void
random_merges_agree_with_adding_everything_to_one(void **state)
{
    struct ef_profile *whole = open_profile("samples", "count");
    struct ef_profile *merged = open_profile("samples", "count");
    static const char *const names[] = {"a", "b", "c", "d"};
    unsigned seed = (unsigned)ef_test_seed();
    int64_t sums[4] = {0};

    (void)state;
    for (int part = 0; part < 20; part++) {
        struct ef_profile *one = open_profile("samples", "count");
        for (int i = 0; i < 50; i++) {
            char stack[64] = "";
            int depth = rand_r(&seed) % 5 + 1, value = rand_r(&seed) % 100 - 20;
            int leaf = 0;
            for (int level = 0; level < depth; level++) {
                leaf = rand_r(&seed) % 4;
                strcat(stack, level > 0 ? ";" : "");
                strcat(stack, names[leaf]);
            }
            add_stack(one, stack, value);
            add_stack(whole, stack, value);
            sums[leaf] += value;
        }
        assert_int_equal(ef_profile_merge(merged, one, 1, NULL), EF_OK);
        ef_profile_free(one);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(row_of(merged, names[i]).self[0], sums[i]);
        assert_int_equal(row_of(merged, names[i]).total[0], row_of(whole, names[i]).total[0]);
    }
    assert_int_equal(merged->node_count, whole->node_count);
    ef_profile_free(whole);
    ef_profile_free(merged);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_gives_a_root_and_nothing_else),
        cmocka_unit_test(equal_things_are_stored_once),
        cmocka_unit_test(twenty_thousand_stacks_are_found_again),
        cmocka_unit_test(parents_have_smaller_numbers_than_children),
        cmocka_unit_test(bad_utf8_and_nul_become_question_marks),
        cmocka_unit_test(ids_that_are_not_there_are_refused),
        cmocka_unit_test(types_come_before_stacks_and_are_at_most_sixteen),
        cmocka_unit_test(a_type_added_after_a_value_of_the_root_keeps_it),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(a_sum_beyond_64_bits_is_refused_and_changes_nothing),
        cmocka_unit_test(a_total_saturates_whatever_the_order_of_signs),
        cmocka_unit_test(merge_adds_values_of_equal_stacks),
        cmocka_unit_test(merge_with_a_factor_scales_and_minus_one_makes_a_difference),
        cmocka_unit_test(merge_of_a_profile_into_itself_doubles_it),
        cmocka_unit_test(merge_into_an_empty_profile_brings_mappings_and_samples),
        cmocka_unit_test(merge_into_a_profile_without_types_takes_the_types),
        cmocka_unit_test(merge_refuses_other_types_and_names_them),
        cmocka_unit_test(merge_of_profiles_without_mappings_adds_them),
        cmocka_unit_test(merge_takes_a_missing_period_type_for_any),
        cmocka_unit_test(merge_refuses_values_that_would_overflow),
        cmocka_unit_test(merge_keeps_the_earlier_time_and_adds_durations),
        cmocka_unit_test(merge_keeps_mappings_apart_that_differ_in_start_only),
        cmocka_unit_test(rows_count_recursion_once),
        cmocka_unit_test(rows_join_lines_of_one_function),
        cmocka_unit_test(rows_come_in_order_of_first_appearance_and_without_the_root),
        cmocka_unit_test(negative_values_net_out),
        cmocka_unit_test(very_deep_stacks_are_summed_without_recursion),
        cmocka_unit_test(names_of_frames_are_shown_as_people_expect),
        cmocka_unit_test(random_merges_agree_with_adding_everything_to_one),
    };

    return cmocka_run_group_tests_name("proto.model.profile", tests, NULL, NULL);
}
