/*
 * Sequences, acknowledgements, losses, parked batches, what a sync is told.
 */
#include "tests/unit/collector/aggregate/fixture.h"

#include "proto/base/json.h"

struct asked {
    struct ef_sync_arena *arena;
    Everflame__V1__SyncReply reply;
};

/* One epoch (number 1), no losses. Free with done(). */
static struct asked
ask(struct fixture *f, uint64_t first, uint64_t last, const Everflame__V1__Lost *lost,
    int64_t now_ns)
{
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__EpochState epoch = EVERFLAME__V1__EPOCH_STATE__INIT;
    Everflame__V1__EpochState *epochs[] = {&epoch};
    struct asked asked = {.arena = ef_sync_arena_open()};
    struct ef_err err = {0};
    char name[] = "host1/agent";

    epoch.epoch = 1;
    epoch.first_sequence = first;
    epoch.last_sequence = last;
    epoch.lost = (Everflame__V1__Lost *)(uintptr_t)lost;
    epoch.samples_published = 1000;
    request.name = name;
    request.epochs = epochs;
    request.n_epochs = 1;
    assert_non_null(asked.arena);
    if (ef_aggregate_sync(f->aggregate, f->publisher, &request, now_ns, asked.arena, &asked.reply,
                          &err) != EF_OK)
        fail_msg("%s", err.msg);
    return asked;
}

static void
done(struct asked *asked)
{
    ef_sync_arena_free(asked->arena);
}

static uint64_t
acknowledged(struct fixture *f, uint64_t first, uint64_t last)
{
    struct asked asked = ask(f, first, last, NULL, NOW);
    uint64_t number = asked.reply.n_epochs == 0 ? 0 : asked.reply.epochs[0]->acknowledged;

    done(&asked);
    return number;
}

static ef_rc
apply_simple(struct fixture *f, uint64_t sequence)
{
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_definition(f->maker, source, "main", false);
    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of("main"), 10);
    return apply_at(f, sequence, NOW);
}

static ef_rc
apply_unknown(struct fixture *f, uint64_t sequence, const char *path, int64_t now_ns)
{
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of(path), 5);
    return apply_at(f, sequence, now_ns);
}

static ef_rc
apply_definition(struct fixture *f, uint64_t sequence, const char *path)
{
    ef_make_definition(f->maker, ef_make_source(f->maker, "shop", "v1", "i1", ""), path, false);
    return apply_at(f, sequence, NOW);
}

static uint64_t
stored(struct fixture *f)
{
    return totals_of(f, 1, 0, INT64_MAX).samples;
}

static void
a_batch_counts_once(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(apply_simple(f, 1), EF_OK);
    assert_int_equal(apply_simple(f, 1), EF_EEXIST);
    flush_at(f, NOW);
    assert_int_equal(apply_simple(f, 1), EF_EEXIST);
    reopen(f);
    assert_int_equal(apply_simple(f, 1), EF_EEXIST);
    flush_at(f, NOW);
    assert_int_equal(stored(f), 10);
}

/* Goal: acknowledged is what is on disk, not what is in memory. */
static void
only_flushed_batches_are_acknowledged(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(apply_simple(f, 1), EF_OK);
    assert_int_equal(apply_simple(f, 2), EF_OK);
    assert_int_equal(acknowledged(f, 1, 2), 0);
    flush_at(f, NOW);
    assert_int_equal(acknowledged(f, 1, 2), 2);
    assert_int_equal(apply_simple(f, 3), EF_OK);
    assert_int_equal(acknowledged(f, 1, 3), 2);
    reopen(f); /* what was not flushed is gone, and comes again */
    assert_int_equal(acknowledged(f, 3, 3), 2);
    assert_int_equal(apply_simple(f, 3), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(stored(f), 30);
    assert_int_equal(acknowledged(f, 3, 3), 3);
}

static void
gaps_before_what_came_are_missing_at_once(void **state)
{
    struct fixture *f = *state;
    const uint64_t came[] = {1, 2, 5, 9};
    struct asked asked;

    for (size_t i = 0; i < 4; i++)
        assert_int_equal(apply_simple(f, came[i]), EF_OK);
    asked = ask(f, 1, 12, NULL, NOW);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 2);
    assert_int_equal(asked.reply.epochs[0]->missing_first[0], 3);
    assert_int_equal(asked.reply.epochs[0]->missing_last[0], 4);
    assert_int_equal(asked.reply.epochs[0]->missing_first[1], 6);
    assert_int_equal(asked.reply.epochs[0]->missing_last[1], 8);
    done(&asked);
}

/* Goal: what has just been published is not asked for, what was reported a sync ago is. */
static void
batches_under_way_are_not_missing_yet(void **state)
{
    struct fixture *f = *state;
    struct asked asked;

    assert_int_equal(apply_simple(f, 1), EF_OK);
    asked = ask(f, 1, 4, NULL, NOW);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 0);
    done(&asked);
    asked = ask(f, 1, 6, NULL, NOW + 100 * EF_NS_PER_MS);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 0);
    done(&asked);
    asked = ask(f, 1, 6, NULL, NOW + S);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 1);
    assert_int_equal(asked.reply.epochs[0]->missing_first[0], 2);
    assert_int_equal(asked.reply.epochs[0]->missing_last[0], 4);
    done(&asked);
}

static void
missing_ranges_of_a_reply_are_bounded(void **state)
{
    struct fixture *f = *state;
    struct asked asked;

    for (uint64_t i = 1; i <= EF_ACK_ABOVE_MAX; i++)
        assert_int_equal(apply_simple(f, 2 * i), EF_OK);
    asked = ask(f, 1, 5000, NULL, NOW);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 256);
    done(&asked);
    /* Too far above: refused until the gap is filled. */
    assert_int_equal(apply_simple(f, 4000), EF_EBUSY);
    assert_int_equal(apply_simple(f, 1), EF_OK);
    assert_int_equal(apply_simple(f, 4000), EF_OK);
}

static void
lost_batches_count_once_and_close_gaps(void **state)
{
    struct fixture *f = *state;
    Everflame__V1__Lost lost = EVERFLAME__V1__LOST__INIT;
    uint64_t sequences[] = {1, 2, 3}, samples[] = {100, 20, 7};
    uint32_t fragments[] = {1, 1, 1};
    struct ef_buf out;
    struct ef_json json;

    lost.sequence = sequences;
    lost.fragments = fragments;
    lost.samples = samples;
    lost.n_sequence = lost.n_fragments = lost.n_samples = 3;
    assert_int_equal(apply_simple(f, 2), EF_OK); /* it did arrive */
    for (int round = 0; round < 3; round++) {
        struct asked asked = ask(f, 4, 4, &lost, NOW + round * S);
        assert_int_equal(asked.reply.epochs[0]->acknowledged, round == 0 ? 0 : 3);
        done(&asked);
        flush_at(f, NOW);
        if (round == 1)
            reopen(f);
    }
    assert_int_equal(apply_simple(f, 1), EF_EEXIST); /* too late */
    assert_int_equal(apply_simple(f, 4), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(stored(f), 20);
    ef_buf_init(&out, 1 << 20);
    ef_json_init(&json, &out);
    ef_json_object(&json);
    ef_aggregate_status(f->aggregate, NOW, &json);
    ef_json_object_end(&json);
    ef_buf_put_u8(&out, 0);
    assert_non_null(
        strstr((char *)out.data, "\"stored\":20,\"lost\":107,\"late\":0,\"duplicate\":10"));
    assert_non_null(strstr((char *)out.data, "\"published\":1000"));
    ef_buf_fini(&out);
}

/* Goal: with a store that was wiped, a publisher in the middle of its life is not stuck. */
static void
what_is_neither_held_nor_lost_is_done_with(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(apply_simple(f, 501), EF_OK);
    assert_int_equal(acknowledged(f, 500, 501), 0);
    assert_int_equal(apply_simple(f, 500), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(acknowledged(f, 500, 501), 501);
    assert_int_equal(stored(f), 20);
}

static void
losses_far_above_are_taken_with_a_wiped_store(void **state)
{
    struct fixture *f = *state;
    enum { COUNT = 3000 };
    static uint64_t sequences[COUNT], samples[COUNT];
    static uint32_t fragments[COUNT];
    Everflame__V1__Lost lost = EVERFLAME__V1__LOST__INIT;
    struct asked asked;

    for (uint64_t i = 0; i < COUNT; i++) {
        sequences[i] = 4000 + i;
        fragments[i] = 1;
        samples[i] = 1;
    }
    lost.sequence = sequences;
    lost.fragments = fragments;
    lost.samples = samples;
    lost.n_sequence = lost.n_fragments = lost.n_samples = COUNT;
    asked = ask(f, 7000, 7000, &lost, NOW);
    done(&asked);
    flush_at(f, NOW);
    assert_int_equal(acknowledged(f, 7000, 7000), 6999);
}

/* ---- parked ---- */

static void
a_batch_waits_for_its_definitions(void **state)
{
    struct fixture *f = *state;
    struct asked asked;

    assert_int_equal(apply_simple(f, 1), EF_OK);
    assert_int_equal(apply_unknown(f, 2, "main;new", NOW), EF_ENOTFOUND);
    assert_int_equal(apply_unknown(f, 2, "main;new", NOW), EF_EEXIST); /* it is here */
    assert_int_equal(apply_simple(f, 4), EF_OK);
    asked = ask(f, 1, 4, NULL, NOW);
    assert_int_equal(asked.reply.epochs[0]->n_missing_first, 1); /* 3, not 2 */
    assert_int_equal(asked.reply.epochs[0]->missing_first[0], 3);
    assert_int_equal(asked.reply.n_wanted, 1);
    assert_string_equal(asked.reply.wanted[0]->worker, "shop");
    assert_string_equal(asked.reply.wanted[0]->version, "v1");
    assert_int_equal(asked.reply.wanted[0]->n_stack_hash, 1);
    assert_int_equal(asked.reply.wanted[0]->stack_hash[0], ef_stack_of("main;new"));
    done(&asked);
    flush_at(f, NOW);
    assert_int_equal(acknowledged(f, 1, 4), 1); /* it is not applied */
    assert_int_equal(apply_definition(f, 3, "main;new"), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(acknowledged(f, 1, 4), 4);
    assert_int_equal(count_of(f, "main;new", 0, INT64_MAX), 5);
    asked = ask(f, 4, 4, NULL, NOW);
    assert_int_equal(asked.reply.n_wanted, 0);
    done(&asked);
}

static void
a_restart_forgets_parked_batches_and_asks_again(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(apply_unknown(f, 1, "main", NOW), EF_ENOTFOUND);
    flush_at(f, NOW);
    reopen(f);
    assert_int_equal(acknowledged(f, 1, 1), 0);
    assert_int_equal(apply_definition(f, 2, "main"), EF_OK);
    assert_int_equal(apply_unknown(f, 1, "main", NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(stored(f), 5);
}

static void
after_the_wait_unknown_stacks_are_booked_as_such(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_ingest_unknown_stacks_total);

    assert_int_equal(apply_unknown(f, 1, "main", NOW), EF_ENOTFOUND);
    flush_at(f, NOW + 59 * S);
    assert_int_equal(stored(f), 0);
    flush_at(f, NOW + 60 * S);
    assert_int_equal(stored(f), 5);
    assert_int_equal(reserved_count(f, EF_STACK_UNKNOWN_NAME), 5);
    assert_int_equal(acknowledged(f, 1, 1), 1);
    assert_int_equal(ef_metric_get(EF_METRIC_ingest_unknown_stacks_total) - before, 5);
}

static void
parked_batches_are_bounded_and_the_newest_comes_again(void **state)
{
    struct fixture *f = *state;
    uint64_t parked = 0;
    char path[32];
    ef_rc rc;

    f->options.parked_bytes_max = 4096;
    reopen(f);
    for (;;) {
        snprintf(path, sizeof(path), "f%d", (int)parked);
        rc = apply_unknown(f, parked + 1, path, NOW);
        if (rc != EF_ENOTFOUND)
            break;
        parked++;
    }
    assert_int_equal(rc, EF_EBUSY);
    assert_in_range(parked, 5, 30);
    assert_int_equal(apply_definition(f, parked + 2, "f0"), EF_OK);
    assert_int_equal(apply_unknown(f, parked + 1, path, NOW), EF_ENOTFOUND); /* one has left */
}

static void
a_parked_batch_reported_lost_is_kept(void **state)
{
    struct fixture *f = *state;
    Everflame__V1__Lost lost = EVERFLAME__V1__LOST__INIT;
    uint64_t sequence = 1, samples = 5;
    uint32_t fragments = 1;
    struct asked asked;

    lost.sequence = &sequence;
    lost.fragments = &fragments;
    lost.samples = &samples;
    lost.n_sequence = lost.n_fragments = lost.n_samples = 1;
    assert_int_equal(apply_unknown(f, 1, "main", NOW), EF_ENOTFOUND);
    asked = ask(f, 2, 2, &lost, NOW);
    done(&asked);
    assert_int_equal(apply_definition(f, 2, "main"), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(stored(f), 5);
    assert_int_equal(acknowledged(f, 2, 2), 2);
}

/* ---- many publishers ---- */

static void
publishers_and_epochs_do_not_mix(void **state)
{
    struct fixture *f = *state;

    for (uint8_t p = 1; p <= 50; p++) {
        f->publisher[3] = p;
        assert_int_equal(apply_simple(f, 1), EF_OK);
        assert_int_equal(apply_simple(f, 1), EF_EEXIST);
    }
    flush_at(f, NOW);
    assert_int_equal(stored(f), 500);
    reopen(f);
    for (uint8_t p = 1; p <= 50; p++) {
        f->publisher[3] = p;
        assert_int_equal(apply_simple(f, 1), EF_EEXIST);
    }
}

/* Goal: delivery state in memory is bounded, and what left it is found again in the store. */
static void
silent_publishers_leave_memory_but_are_remembered(void **state)
{
    struct fixture *f = *state;

    f->options.publishers_max = 4;
    reopen(f);
    for (uint8_t p = 1; p <= 4; p++) {
        f->publisher[3] = p;
        assert_int_equal(apply_simple(f, 1), EF_OK);
    }
    flush_at(f, NOW);
    f->publisher[3] = 5;
    assert_int_equal(apply_simple(f, 1), EF_EBUSY); /* all are active */
    for (uint8_t p = 5; p <= 8; p++) {
        int64_t later = NOW + 7200 * S;
        f->publisher[3] = p;
        ef_make_definition(f->maker, ef_make_source(f->maker, "shop", "v1", "i1", ""), "main",
                           false);
        assert_int_equal(apply_at(f, 1, later), EF_OK);
        flush_at(f, later);
    }
    f->publisher[3] = 1;
    ef_make_definition(f->maker, ef_make_source(f->maker, "shop", "v1", "i1", ""), "main", false);
    assert_int_equal(apply_at(f, 1, NOW + 15000 * S), EF_EEXIST);
}

/* ---- directives and status ---- */

static void
a_collection_is_asked_of_every_publisher_for_a_while(void **state)
{
    struct fixture *f = *state;
    struct asked asked;
    char id[64];

    assert_int_equal(ef_aggregate_request_collect(f->aggregate, "", "shop", "", NOW, NULL), EF_OK);
    assert_int_equal(ef_aggregate_request_collect(f->aggregate, "", "shop", "", NOW, NULL), EF_OK);
    asked = ask(f, 1, 0, NULL, NOW);
    assert_int_equal(asked.reply.n_directives, 1);
    assert_int_equal(asked.reply.directives[0]->kind, EVERFLAME__V1__DIRECTIVE_KIND__COLLECT);
    assert_string_equal(asked.reply.directives[0]->worker, "shop");
    snprintf(id, sizeof(id), "%s", asked.reply.directives[0]->id);
    done(&asked);
    assert_int_equal(ef_aggregate_request_collect(f->aggregate, "", "shop", "", NOW + 2 * S, NULL),
                     EF_OK);
    f->publisher[3] = 9;
    asked = ask(f, 1, 0, NULL, NOW + 2 * S);
    assert_int_equal(asked.reply.n_directives, 2);
    assert_string_equal(asked.reply.directives[0]->id, id);
    assert_string_not_equal(asked.reply.directives[1]->id, id);
    done(&asked);
    asked = ask(f, 1, 0, NULL, NOW + 30 * S);
    assert_int_equal(asked.reply.n_directives, 0);
    done(&asked);
}

static void
collections_are_bounded(void **state)
{
    struct fixture *f = *state;
    char worker[16];
    ef_rc rc = EF_OK;
    int count;

    for (count = 0; count < 1000 && rc == EF_OK; count++) {
        snprintf(worker, sizeof(worker), "w%d", count);
        rc = ef_aggregate_request_collect(f->aggregate, "", worker, "", NOW, NULL);
    }
    assert_int_equal(rc, EF_ERATE);
    assert_int_equal(count, 65);
}

static char *
status_text(struct fixture *f, int64_t now_ns)
{
    struct ef_buf out;
    struct ef_json json;
    size_t len;

    ef_buf_init(&out, 1 << 20);
    ef_json_init(&json, &out);
    ef_json_object(&json);
    ef_aggregate_status(f->aggregate, now_ns, &json);
    ef_json_object_end(&json);
    ef_buf_put_u8(&out, 0);
    return (char *)ef_buf_take(&out, &len);
}

static void
targets_are_shown_until_their_agent_is_silent_for_a_minute(void **state)
{
    struct fixture *f = *state;
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__TargetStatus target = EVERFLAME__V1__TARGET_STATUS__INIT, *targets[] = {&target};
    Everflame__V1__Source source = EVERFLAME__V1__SOURCE__INIT;
    Everflame__V1__SyncReply reply;
    struct ef_sync_arena *arena = ef_sync_arena_open();
    char worker[] = "shop", where[] = "127.0.0.1:9229", sampling[] = "sampling";
    char *text;

    source.worker = worker;
    target.source = &source;
    target.inspector = where;
    target.state = sampling;
    target.cpu_ratio = 0.0025;
    request.targets = targets;
    request.n_targets = 1;
    request.spool_bytes = 77;
    assert_int_equal(
        ef_aggregate_sync(f->aggregate, f->publisher, &request, NOW, arena, &reply, NULL), EF_OK);
    text = status_text(f, NOW + 4 * S);
    assert_non_null(strstr(text, "\"inspector\":\"127.0.0.1:9229\""));
    assert_non_null(strstr(text, "\"cpu_ratio\":0.0025"));
    assert_non_null(strstr(text, "\"connected\":true"));
    assert_non_null(strstr(text, "\"spool_bytes\":77"));
    free(text);
    text = status_text(f, NOW + 61 * S);
    assert_null(strstr(text, "127.0.0.1:9229"));
    assert_non_null(strstr(text, "\"connected\":false"));
    free(text);
    ef_sync_arena_free(arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_batch_counts_once),
        TEST(only_flushed_batches_are_acknowledged),
        TEST(gaps_before_what_came_are_missing_at_once),
        TEST(batches_under_way_are_not_missing_yet),
        TEST(missing_ranges_of_a_reply_are_bounded),
        TEST(lost_batches_count_once_and_close_gaps),
        TEST(what_is_neither_held_nor_lost_is_done_with),
        TEST(losses_far_above_are_taken_with_a_wiped_store),
        TEST(a_batch_waits_for_its_definitions),
        TEST(a_restart_forgets_parked_batches_and_asks_again),
        TEST(after_the_wait_unknown_stacks_are_booked_as_such),
        TEST(parked_batches_are_bounded_and_the_newest_comes_again),
        TEST(a_parked_batch_reported_lost_is_kept),
        TEST(publishers_and_epochs_do_not_mix),
        TEST(silent_publishers_leave_memory_but_are_remembered),
        TEST(a_collection_is_asked_of_every_publisher_for_a_while),
        TEST(collections_are_bounded),
        TEST(targets_are_shown_until_their_agent_is_silent_for_a_minute),
    };
    return cmocka_run_group_tests_name("aggregate.delivery", tests, NULL, NULL);
}
