/*
 * Whole profiles from files: sums, splitting, refusals. And the aggregate's account of its memory,
 * and many threads at once.
 */
#include "tests/unit/collector/aggregate/fixture.h"

#include "proto/model/profile.h"

#include <malloc.h>
#include <pthread.h>

/* main;work and main;idle with counts and values; one frame without function. */
static struct ef_profile *
make_profile(int64_t work, int64_t idle)
{
    struct ef_profile *profile;
    uint32_t name, file, function, frame, root_node, node;
    struct ef_profile_mapping mapping = {0};
    const char *names[] = {"main", "work"};

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "samples", "count", NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "cpu", "nanoseconds", NULL), EF_OK);
    assert_int_equal(ef_profile_add_string(profile, "app.js", 6, &file, NULL), EF_OK);
    root_node = 0;
    for (int i = 0; i < 2; i++) {
        struct ef_profile_function f = {.file = file, .start_line = 1};
        struct ef_profile_frame fr = {.line = 1};
        assert_int_equal(ef_profile_add_string(profile, names[i], 4, &name, NULL), EF_OK);
        f.name = name;
        assert_int_equal(ef_profile_add_function(profile, &f, &function, NULL), EF_OK);
        fr.function = function;
        assert_int_equal(ef_profile_add_frame(profile, &fr, &frame, NULL), EF_OK);
        assert_int_equal(ef_profile_add_node(profile, root_node, frame, &node, NULL), EF_OK);
        if (i == 0)
            root_node = node;
    }
    assert_int_equal(ef_profile_add_value(profile, node, 0, work, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(profile, node, 1, work * 1001, NULL), EF_OK);
    mapping.file = file;
    assert_int_equal(ef_profile_add_mapping(profile, &mapping, &name, NULL), EF_OK);
    {
        struct ef_profile_frame fr = {.mapping = name, .address = 0x1234};
        assert_int_equal(ef_profile_add_frame(profile, &fr, &frame, NULL), EF_OK);
        assert_int_equal(ef_profile_add_node(profile, root_node, frame, &node, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 0, idle, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 1, idle * 1001, NULL), EF_OK);
    }
    return profile;
}

static const struct ef_import simple = {.account = "acct",
                                        .worker = "shop",
                                        .version = "v1",
                                        .region = "",
                                        .profile_type = EF_TYPE_CPU,
                                        .start_ns = T0 + 15 * S,
                                        .duration_ns = 10 * S,
                                        .interval = 1000,
                                        .type_count = 0,
                                        .type_value = 1};

static void
an_imported_profile_is_split_and_its_sums_are_kept(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *profile = make_profile(7, 4);
    struct ef_store_totals first, second;

    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &simple, NOW, NULL), EF_OK);
    flush_at(f, NOW);
    first = totals_of(f, 1, T0 + 10 * S, T0 + 20 * S);
    second = totals_of(f, 1, T0 + 20 * S, T0 + 30 * S);
    assert_int_equal(first.samples + second.samples, 11);
    assert_int_equal(first.value + second.value, 11011);
    assert_in_range(first.samples, 5, 6);
    assert_int_equal(count_of(f, "main;work", 0, INT64_MAX), 7);
    ef_profile_free(profile);
}

static void
an_imported_stack_is_the_one_that_samplers_send(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *profile = make_profile(7, 4);
    uint32_t source;

    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &simple, NOW, NULL), EF_OK);
    source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 3); /* known without a definition */
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(count_of(f, "main;work", 0, INT64_MAX), 10);
    ef_profile_free(profile);
}

static void
one_type_gives_the_other(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *profile = make_profile(7, 4);
    struct ef_import import = simple;

    import.type_value = -1; /* value = count × interval */
    import.duration_ns = 0;
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, NULL), EF_OK);
    import.type_value = 1; /* count = value ÷ interval, to the nearest */
    import.type_count = -1;
    import.version = "v2";
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, NULL), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).value, 11000);
    assert_int_equal(totals_of(f, 2, 0, INT64_MAX).samples, 11);
    assert_int_equal(totals_of(f, 2, 0, INT64_MAX).value, 11011);
    ef_profile_free(profile);
}

static void
what_cannot_be_kept_is_refused_whole(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *profile = make_profile(7, 4), *difference = make_profile(7, -4);
    struct ef_import import = simple;
    struct ef_err err = {0};

    assert_int_equal(ef_aggregate_import(f->aggregate, difference, &simple, NOW, &err), EF_EINVAL);
    assert_non_null(strstr(err.msg, "difference"));
    import.start_ns = T0 - INT64_C(30) * 86400 * S;
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, &err), EF_ELIMIT);
    import.start_ns = T0;
    import.duration_ns = INT64_C(2) * 86400 * S;
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, &err), EF_EINVAL);
    import.duration_ns = S;
    import.type_count = 2;
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, &err), EF_EINVAL);
    import.type_count = import.type_value = -1;
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, &err), EF_EINVAL);
    import = simple;
    import.worker = "";
    assert_int_equal(ef_aggregate_import(f->aggregate, profile, &import, NOW, &err), EF_EINVAL);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, 0);
    ef_profile_free(profile);
    ef_profile_free(difference);
}

/* ---- memory ---- */

/* Goal: what the aggregate says it holds is what malloc says. */
static void
the_account_of_memory_is_honest(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); /* the sanitizers have an allocator of their own */
#else
    struct fixture *f = *state;
    uint64_t said = ef_aggregate_bytes(f->aggregate);
    struct mallinfo2 before = mallinfo2(), after;
    double ratio;

    for (int v = 0; v < 20; v++) {
        char name[16], path[64];
        uint32_t source;
        snprintf(name, sizeof(name), "v%d", v);
        source = ef_make_source(f->maker, "shop", name, "i1", "");
        for (int i = 0; i < 1000; i++) {
            snprintf(path, sizeof(path), "main;handler;function%d", i);
            ef_make_definition(f->maker, source, path, false);
        }
        for (int i = 0; i < 30; i++) {
            ef_make_fragment(f->maker, source, T0 - i * 10 * S, S);
            for (int k = 0; k < 100; k++) {
                snprintf(path, sizeof(path), "main;handler;function%d", k * 10 + i % 10);
                ef_make_samples(f->maker, ef_stack_of(path), 1);
            }
        }
        f->publisher[5] = (uint8_t)v;
        assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    }
    after = mallinfo2();
    ratio = (double)(ef_aggregate_bytes(f->aggregate) - said) /
            (double)(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd);
    assert_true(ratio > 0.85 && ratio < 1.2);
#endif
}

/* ---- threads ---- */

struct crowd {
    struct fixture *f;
    uint8_t number;
    uint64_t applied;
    _Atomic bool *stop;
};

static void *
apply_main(void *arg)
{
    struct crowd *crowd = arg;
    struct ef_batch_maker *maker = ef_batch_maker_open();
    uint8_t publisher[16] = {crowd->number};

    for (uint64_t i = 1; i <= 400; i++) {
        uint32_t source = ef_make_source(maker, "shop", i % 2 == 0 ? "v1" : "v2", "i", "");
        char path[32];
        snprintf(path, sizeof(path), "main;f%d", (int)(i % 50));
        ef_make_definition(maker, source, path, false);
        ef_make_fragment(maker, source, T0, 25 * S);
        ef_make_samples(maker, ef_stack_of(path), 10);
        crowd->applied += ef_aggregate_apply(crowd->f->aggregate, publisher, 1, i,
                                             ef_make_batch(maker), NOW, NULL) == EF_OK;
        ef_batch_maker_clear(maker);
    }
    ef_batch_maker_free(maker);
    return NULL;
}

static void *
flush_main(void *arg)
{
    struct crowd *crowd = arg;

    while (!*crowd->stop)
        crowd->applied += ef_aggregate_flush(crowd->f->aggregate, NOW, NULL) != EF_OK;
    return NULL;
}

static void
threads_do_not_disturb_each_other(void **state)
{
    struct fixture *f = *state;
    _Atomic bool stop = false;
    struct crowd crowds[4] = {{0}}, flusher = {.f = f, .stop = &stop};
    pthread_t threads[4], flush_thread;
    uint64_t sum;

    assert_int_equal(pthread_create(&flush_thread, NULL, flush_main, &flusher), 0);
    for (uint8_t i = 0; i < 4; i++) {
        crowds[i] = (struct crowd){.f = f, .number = (uint8_t)(i + 1), .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, apply_main, &crowds[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    stop = true;
    pthread_join(flush_thread, NULL);
    flush_at(f, NOW);
    for (int i = 0; i < 4; i++)
        assert_int_equal(crowds[i].applied, 400);
    assert_int_equal(flusher.applied, 0);
    sum = totals_of(f, 1, 0, INT64_MAX).samples + totals_of(f, 2, 0, INT64_MAX).samples;
    assert_int_equal(sum, 16000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_imported_profile_is_split_and_its_sums_are_kept),
        TEST(an_imported_stack_is_the_one_that_samplers_send),
        TEST(one_type_gives_the_other),
        TEST(what_cannot_be_kept_is_refused_whole),
        TEST(the_account_of_memory_is_honest),
        TEST(threads_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests_name("aggregate.import", tests, NULL, NULL);
}
