/*
 * The publisher against a fake collector: what is added arrives once, in order, with its meaning,
 * or is counted as lost.
 */
#include "tests/support/ef_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/time.h"
#include "proto/model/hash.h"
#include "sampler/lib/publisher.h"
#include "tests/support/fake_collector.h"

#define DEPTH 5
#define LEAVES 20

/* root > f0 > f1 > … > f4 > leaf0 … leaf19 */
struct tree {
    struct ef_profile *profile;
    uint64_t *hashes;
    uint32_t trunk[DEPTH], leaves[LEAVES];
};

struct fixture {
    struct ef_fake *fake;
    struct tree tree;
    char *folder;
    struct ef_publisher_options options;
    struct ef_publisher *publisher;
    struct ef_err err;
    uint64_t samples_added;
};

static uint32_t
add_node(struct ef_profile *profile, uint32_t parent, const char *name, uint32_t line,
         uint32_t column)
{
    struct ef_profile_function function = {.start_line = 1};
    struct ef_profile_frame frame = {.line = line, .column = column};
    uint32_t id = 0, node = 0;

    if (ef_profile_add_string(profile, name, strlen(name), &function.name, NULL) != EF_OK ||
        ef_profile_add_string(profile, "a.js", 4, &function.file, NULL) != EF_OK ||
        ef_profile_add_function(profile, &function, &frame.function, NULL) != EF_OK ||
        ef_profile_add_frame(profile, &frame, &id, NULL) != EF_OK ||
        ef_profile_add_node(profile, parent, id, &node, NULL) != EF_OK)
        fail_msg("cannot make a profile");
    return node;
}

static void
make_tree(struct tree *tree, const char *leaf_prefix)
{
    char name[64];
    uint32_t node = 0;

    if (ef_profile_open(&ef_profile_limits_default, &tree->profile, NULL) != EF_OK ||
        ef_profile_add_type(tree->profile, "samples", "count", NULL) != EF_OK)
        fail_msg("cannot make a profile");
    for (uint32_t i = 0; i < DEPTH; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        tree->trunk[i] = node = add_node(tree->profile, node, name, i + 1, 0);
    }
    for (uint32_t i = 0; i < LEAVES; i++) {
        snprintf(name, sizeof(name), "%s%u", leaf_prefix, i);
        tree->leaves[i] = add_node(tree->profile, node, name, 7, 0);
    }
    if (ef_profile_hashes(tree->profile, &tree->hashes, NULL) != EF_OK)
        fail_msg("cannot hash a profile");
}

static void
free_tree(struct tree *tree)
{
    ef_profile_free(tree->profile);
    free(tree->hashes);
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->fake = ef_fake_open(0, 0);
    make_tree(&f->tree, "leaf");
    f->folder = ef_test_tmpdir();
    f->options = (struct ef_publisher_options){
        .ingest_url = ef_fake_ingest_url(f->fake),
        .sync_url = ef_fake_sync_url(f->fake),
        .name = "host-1/test",
        .batch_delay_ms = 20,
        .sync_interval_ms = 50,
    };
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_publisher_free(f->publisher);
    ef_fake_free(f->fake);
    free_tree(&f->tree);
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

static void
open_publisher(struct fixture *f)
{
    if (ef_publisher_open(&f->options, &f->publisher, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

static struct ef_source
source_of(const char *worker, const char *instance)
{
    return (struct ef_source){.account = "acme",
                              .worker = worker,
                              .version = "v1",
                              .instance = instance,
                              .host = "host-1",
                              .runtime = "node"};
}

/* A fragment with one sample of each leaf but the last ones. */
static struct ef_fragment
fragment_of(const struct tree *tree, struct ef_fragment_sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++)
        samples[i] = (struct ef_fragment_sample){tree->leaves[i % LEAVES], i + 1, 0};
    return (struct ef_fragment){.source = source_of("checkout", "pid:1"),
                                .profile_type = 1,
                                .start_ns = INT64_C(1764590000000000000),
                                .span_ns = 10000000000,
                                .interval = 50000000,
                                .profile = tree->profile,
                                .hashes = tree->hashes,
                                .samples = samples,
                                .sample_count = count};
}

/* Adds a fragment of 3 stacks and 6 samples. */
static void
add_one(struct fixture *f)
{
    struct ef_fragment_sample samples[3];
    struct ef_fragment fragment = fragment_of(&f->tree, samples, 3);

    if (ef_publisher_add(f->publisher, &fragment, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
    f->samples_added += 6;
}

static void
add_batches(struct fixture *f, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        add_one(f);
        if (ef_publisher_flush(f->publisher, &f->err) != EF_OK)
            fail_msg("%s", f->err.msg);
    }
}

static void
drain(struct fixture *f)
{
    if (ef_publisher_drain(f->publisher, 20000, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

static struct ef_publisher_stat
stat_of(struct fixture *f)
{
    struct ef_publisher_stat stat;

    ef_publisher_get_stat(f->publisher, &stat);
    return stat;
}

static bool
has_requests(struct ef_fake *fake, void *arg)
{
    return fake->requests >= *(const uint64_t *)arg;
}

static void
wait_requests(struct fixture *f, uint64_t count)
{
    assert_true(ef_fake_wait(f->fake, has_requests, &count));
}

static void
fragments_arrive_once_in_order_and_free_the_spool(void **state)
{
    struct fixture *f = *state;
    uint64_t one = 1;
    struct ef_publisher_stat stat;
    struct ef_fake_epoch *epoch;

    open_publisher(f);
    assert_true(ef_fake_wait(f->fake, has_requests, &one)); /* connected: PUB reaches us */
    add_batches(f, 200);
    drain(f);
    stat = stat_of(f);
    assert_int_equal(stat.batches_held, 0);
    assert_int_equal(stat.bytes_held, 0);
    assert_int_equal(stat.sequence, 200);
    assert_int_equal(stat.acknowledged, 200);
    assert_int_equal(stat.fragments_published, 200);
    assert_int_equal(stat.samples_published, 1200);
    assert_int_equal(stat.fragments_lost, 0);
    assert_true(stat.connected);
    ef_fake_lock(f->fake);
    epoch = ef_fake_epoch(f->fake, stat.epoch);
    assert_non_null(epoch);
    assert_int_equal(epoch->contiguous, 200);
    assert_int_equal(epoch->fragments, 200);
    assert_int_equal(epoch->samples, 1200);
    if (stat.batches_resent == 0)
        assert_int_equal(epoch->out_of_order, 0);
    assert_int_equal(f->fake->bad_messages, 0);
    assert_string_equal(f->fake->name, "host-1/test");
    ef_fake_unlock(f->fake);
}

static void
definitions_travel_once_and_before_their_samples(void **state)
{
    struct fixture *f = *state;
    struct ef_publisher_stat stat;

    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 20);
    drain(f);
    stat = stat_of(f);
    assert_int_equal(stat.dictionary_stacks, DEPTH + 3);
    ef_fake_lock(f->fake);
    assert_int_equal(f->fake->stack_definitions.count, DEPTH + 3);
    assert_int_equal(f->fake->function_definitions.count, DEPTH + 3);
    for (int i = 0; i < 3; i++) {
        uint64_t hash = f->tree.hashes[f->tree.leaves[i]];
        assert_int_equal(ef_fake_map(&f->fake->stack_definitions, hash), 1);
        assert_int_equal(ef_fake_map(&f->fake->stack_parent, hash),
                         f->tree.hashes[f->tree.trunk[DEPTH - 1]]);
        assert_int_equal(ef_fake_map(&f->fake->stack_samples, hash), 20 * (i + 1));
    }
    if (stat.batches_resent == 0)
        assert_int_equal(f->fake->undefined_first, 0);
    ef_fake_unlock(f->fake);
}

static bool
wanted_came(struct ef_fake *fake, void *arg)
{
    const struct tree *tree = arg;

    return ef_fake_map(&fake->stack_definitions, tree->hashes[tree->leaves[2]]) >= 2;
}

static void
wanted_definitions_come_again_with_all_callers(void **state)
{
    struct fixture *f = *state;

    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 1);
    drain(f);
    ef_fake_lock(f->fake);
    snprintf(f->fake->account, sizeof(f->fake->account), "acme");
    snprintf(f->fake->worker, sizeof(f->fake->worker), "checkout");
    snprintf(f->fake->version, sizeof(f->fake->version), "v1");
    f->fake->wanted[0] = f->tree.hashes[f->tree.leaves[2]];
    f->fake->wanted[1] = 12345; /* never heard of */
    f->fake->wanted_count = 2;
    ef_fake_unlock(f->fake);
    assert_true(ef_fake_wait(f->fake, wanted_came, &f->tree));
    ef_fake_lock(f->fake);
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(ef_fake_map(&f->fake->stack_definitions, f->tree.hashes[f->tree.trunk[i]]),
                         2);
    /* Only what was asked for, in a batch of its own, not again in each sync. */
    assert_int_equal(ef_fake_map(&f->fake->stack_definitions, f->tree.hashes[f->tree.leaves[0]]),
                     1);
    assert_int_equal(f->fake->batches_without_fragments, 1);
    assert_int_equal(
        ef_fake_map(&f->fake->function_definitions, ef_function_hash("f0", 2, "a.js", 4, 1)), 2);
    assert_int_equal(f->fake->bad_messages, 0);
    ef_fake_unlock(f->fake);
    drain(f);
}

static void
missing_batches_are_sent_again(void **state)
{
    struct fixture *f = *state;
    struct ef_fake_epoch *epoch;
    struct ef_publisher_stat stat;

    ef_fake_lock(f->fake);
    f->fake->drop_every = 3;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 100);
    drain(f);
    stat = stat_of(f);
    assert_true(stat.batches_resent >= 33);
    ef_fake_lock(f->fake);
    epoch = ef_fake_epoch(f->fake, stat.epoch);
    assert_int_equal(epoch->fragments, 100);
    assert_int_equal(epoch->samples, 600);
    assert_int_equal(epoch->lost_sequences, 0);
    ef_fake_unlock(f->fake);
}

/* Goal: what was added while nobody listened arrives when somebody does. */
static void
outage_is_bridged(void **state)
{
    struct fixture *f = *state;
    int ingest = 0, sync = 0;
    char ingest_url[64], sync_url[64];
    struct ef_publisher_stat stat;

    ef_fake_ports(f->fake, &ingest, &sync);
    snprintf(ingest_url, sizeof(ingest_url), "%s", ef_fake_ingest_url(f->fake));
    snprintf(sync_url, sizeof(sync_url), "%s", ef_fake_sync_url(f->fake));
    f->options.ingest_url = ingest_url;
    f->options.sync_url = sync_url;
    ef_fake_free(f->fake);
    f->fake = NULL;
    open_publisher(f);
    add_batches(f, 500);
    stat = stat_of(f);
    assert_false(stat.connected);
    assert_int_equal(stat.batches_held, 500);
    assert_int_equal(ef_publisher_drain(f->publisher, 30, &f->err), EF_ETIMEOUT);
    assert_non_null(strstr(f->err.msg, "500 batches"));
    f->fake = ef_fake_open(ingest, sync);
    drain(f);
    ef_fake_lock(f->fake);
    assert_int_equal(ef_fake_epoch(f->fake, stat.epoch)->samples, 3000);
    assert_int_equal(ef_fake_epoch(f->fake, stat.epoch)->lost_sequences, 0);
    ef_fake_unlock(f->fake);
}

static void
old_epoch_is_delivered_after_restart(void **state)
{
    struct fixture *f = *state;
    char path[600];
    uint64_t old_epoch;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    struct ef_publisher_stat stat;

    snprintf(path, sizeof(path), "%s/spool", f->folder);
    f->options.spool_path = path;
    ef_fake_lock(f->fake);
    f->fake->acks_nothing = true;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 30);
    add_one(f); /* still in the batch under construction */
    old_epoch = stat_of(f).epoch;
    ef_publisher_free(f->publisher);
    f->publisher = NULL;
    ef_fake_forget(f->fake);
    ef_fake_lock(f->fake);
    f->fake->acks_nothing = false;
    memcpy(publisher, f->fake->publisher, sizeof(publisher));
    ef_fake_unlock(f->fake);
    open_publisher(f);
    stat = stat_of(f);
    assert_true(stat.epoch > old_epoch);
    assert_int_equal(stat.sequence, 0);
    add_batches(f, 5);
    drain(f);
    ef_fake_lock(f->fake);
    assert_memory_equal(publisher, f->fake->publisher, sizeof(publisher));
    assert_int_equal(ef_fake_epoch(f->fake, old_epoch)->samples, 186);
    assert_int_equal(ef_fake_epoch(f->fake, old_epoch)->fragments_published, 31);
    assert_int_equal(ef_fake_epoch(f->fake, old_epoch)->lost_sequences, 0);
    assert_int_equal(ef_fake_epoch(f->fake, stat.epoch)->samples, 30);
    ef_fake_unlock(f->fake);
    /* A drained publisher leaves no batch behind. */
    ef_publisher_free(f->publisher);
    f->publisher = NULL;
    open_publisher(f);
    assert_int_equal(stat_of(f).batches_held, 0);
}

static void
a_folder_has_one_publisher(void **state)
{
    struct fixture *f = *state;
    struct ef_publisher *other = NULL;
    char path[600];

    snprintf(path, sizeof(path), "%s/spool", f->folder);
    f->options.spool_path = path;
    open_publisher(f);
    assert_int_equal(ef_publisher_open(&f->options, &other, &f->err), EF_ECONFLICT);
    assert_null(other);
    assert_non_null(strstr(f->err.msg, "spool"));
}

static void
bad_options_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_publisher *publisher = NULL;

    f->options.ingest_url = "nonsense";
    assert_int_equal(ef_publisher_open(&f->options, &publisher, &f->err), EF_EINVAL);
    f->options.ingest_url = ef_fake_ingest_url(f->fake);
    f->options.key_file = "/nonexistent/keys";
    assert_int_equal(ef_publisher_open(&f->options, &publisher, &f->err), EF_ENOTFOUND);
    f->options.key_file = NULL;
    f->options.spool_path = "/nonexistent/a/b";
    assert_int_equal(ef_publisher_open(&f->options, &publisher, &f->err), EF_ENOTFOUND);
    assert_null(publisher);
}

static void
what_the_bound_forces_out_is_reported_exactly(void **state)
{
    struct fixture *f = *state;
    struct ef_fake_epoch *epoch;
    struct ef_publisher_stat stat;

    f->options.spool_bytes_max = 8192;
    ef_fake_lock(f->fake);
    f->fake->mute = true;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 300);
    stat = stat_of(f);
    assert_true(stat.bytes_held <= 8192);
    assert_true(stat.fragments_lost > 200);
    assert_int_equal(stat.fragments_lost + stat.batches_held, 300);
    assert_int_equal(stat.samples_lost, stat.fragments_lost * 6);
    ef_publisher_free(f->publisher);
    f->publisher = NULL;
    /* The same with a collector that hears nothing, in one life: all is delivered or reported. */
    ef_fake_lock(f->fake);
    f->fake->mute = false;
    f->fake->drop_every = 1;
    f->fake->acks_nothing = true;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    add_batches(f, 300);
    stat = stat_of(f);
    ef_fake_lock(f->fake);
    f->fake->drop_every = 0;
    f->fake->acks_nothing = false;
    ef_fake_unlock(f->fake);
    drain(f);
    ef_fake_lock(f->fake);
    epoch = ef_fake_epoch(f->fake, stat.epoch);
    assert_int_equal(epoch->contiguous, 300);
    assert_int_equal(epoch->lost_fragments + epoch->fragments, 300);
    assert_int_equal(epoch->lost_samples + epoch->samples, 1800);
    assert_true(epoch->lost_sequences > 200);
    ef_fake_unlock(f->fake);
    assert_int_equal(stat_of(f).batches_held, 0);
}

static bool
has_all(struct ef_fake *fake, void *arg)
{
    const struct ef_publisher_stat *stat = arg;
    const struct ef_fake_epoch *epoch = ef_fake_epoch(fake, stat->epoch);

    return epoch != NULL && epoch->contiguous >= stat->sequence;
}

/* Goal: a collector with a fresh data folder learns that what we dropped will never come. */
static void
collector_that_lost_its_state_can_move_on(void **state)
{
    struct fixture *f = *state;
    struct ef_publisher_stat stat;
    struct ef_fake_epoch *epoch;

    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 50);
    drain(f);
    ef_fake_forget(f->fake);
    add_batches(f, 10);
    stat = stat_of(f);
    assert_int_equal(stat.sequence, 60);
    assert_true(ef_fake_wait(f->fake, has_all, &stat));
    drain(f);
    ef_fake_lock(f->fake);
    epoch = ef_fake_epoch(f->fake, stat.epoch);
    assert_int_equal(epoch->lost_sequences, 50);
    assert_int_equal(epoch->lost_samples, 0);
    assert_int_equal(epoch->samples, 60);
    ef_fake_unlock(f->fake);
    assert_int_equal(stat_of(f).acknowledged, 60);
}

static void
replies_to_other_requests_are_ignored(void **state)
{
    struct fixture *f = *state;
    struct ef_publisher_stat stat;

    ef_fake_lock(f->fake);
    f->fake->old_reply_first = true;
    f->fake->acks_nothing = true;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    wait_requests(f, 1);
    add_batches(f, 10);
    wait_requests(f, 7);
    stat = stat_of(f);
    assert_int_equal(stat.batches_held, 10); /* the forged replies acknowledged all */
    assert_true(stat.syncs_failed >= 2);
    assert_true(stat.syncs_answered >= 2);
    ef_fake_lock(f->fake);
    f->fake->acks_nothing = false;
    ef_fake_unlock(f->fake);
    drain(f);
}

static void
record_directive(void *arg, const struct ef_directive *directive)
{
    /* The sync thread: records only. */
    if (strcmp(directive->id, "directive-1") == 0)
        __atomic_store_n((int *)arg, directive->kind, __ATOMIC_SEQ_CST);
}

static bool
directive_was_sent(struct ef_fake *fake, void *arg)
{
    (void)arg;
    return fake->directive_kind == 0;
}

static void
directives_and_targets_pass(void **state)
{
    struct fixture *f = *state;
    static char long_text[3000];
    struct ef_target_status targets[3] = {{.source = source_of("checkout", "pid:1"),
                                           .state = "sampling",
                                           .inspector = "127.0.0.1:9229",
                                           .message = long_text},
                                          {.source = {.account = "bad\nname"}, .state = "held"},
                                          {.state = "unreachable"}};
    int kind = 0;
    uint64_t requests;

    memset(long_text, 'x', sizeof(long_text) - 1);
    ef_fake_lock(f->fake);
    f->fake->directive_kind = 1;
    ef_fake_unlock(f->fake);
    f->options.directive = record_directive;
    f->options.arg = &kind;
    open_publisher(f);
    ef_publisher_set_targets(f->publisher, targets, 3);
    assert_true(ef_fake_wait(f->fake, directive_was_sent, NULL));
    ef_fake_lock(f->fake);
    requests = f->fake->requests + 2; /* the reply before was applied when the next request comes */
    ef_fake_unlock(f->fake);
    wait_requests(f, requests);
    assert_int_equal(__atomic_load_n(&kind, __ATOMIC_SEQ_CST), 1);
    ef_fake_lock(f->fake);
    assert_int_equal(f->fake->targets, 2);
    ef_fake_unlock(f->fake);
}

static void
bad_fragments_are_refused_and_good_ones_pass(void **state)
{
    struct fixture *f = *state;
    struct ef_fragment_sample samples[3];
    uint32_t ticks[6] = {1, 2, 3, 4, 5, 6};
    uint64_t wrong[DEPTH + LEAVES + 1];
    struct ef_usage usage = {.source = source_of("checkout", "pid:1"), .span_ns = 10, .cpu_ns = 5};

    open_publisher(f);
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        struct ef_fragment fragment = fragment_of(&f->tree, samples, 3);                           \
        change;                                                                                    \
        assert_int_equal(ef_publisher_add(f->publisher, &fragment, &f->err), EF_EINVAL);           \
        assert_int_equal(f->err.rc, EF_EINVAL);                                                    \
    } while (0)
    REFUSED(fragment.source.account = "");
    REFUSED(fragment.source.instance = NULL);
    REFUSED(fragment.source.host = "a\tb");
    REFUSED(fragment.source.label_count = 17);
    REFUSED(fragment.source.label_count = 1); /* NULL name */
    REFUSED(fragment.profile_type = 0);
    REFUSED(fragment.profile_type = 9);
    REFUSED(fragment.stratum = 2);
    REFUSED(fragment.start_ns = -1);
    REFUSED(fragment.span_ns = UINT64_MAX);
    REFUSED(samples[1].count = 0);
    REFUSED(samples[1].node = 0);
    REFUSED(samples[1].node = 100000);
    REFUSED(samples[1].value = -1);
    REFUSED((fragment.tick_ms = ticks, fragment.tick_count = 5));
    REFUSED(fragment.profile = NULL);
    for (size_t i = 0; i <= DEPTH + LEAVES; i++)
        wrong[i] = 77 + i;
    REFUSED(fragment.hashes = wrong);
    usage.hot_cpu_ns = 6;
    assert_int_equal(ef_publisher_add_usage(f->publisher, &usage, &f->err), EF_EINVAL);
    usage.hot_cpu_ns = 0;
    assert_int_equal(ef_publisher_add_usage(f->publisher, &usage, &f->err), EF_OK);
    add_one(f);
    drain(f);
    ef_fake_lock(f->fake);
    assert_int_equal(f->fake->usages, 1);
    assert_int_equal(f->fake->bad_messages, 0);
    ef_fake_unlock(f->fake);
    assert_int_equal(stat_of(f).fragments_published, 1);
    assert_int_equal(stat_of(f).samples_published, 6);
}

/* Goal: two nodes that differ only in their column are one stack on the wire, ticks in its order.
 */
static void
equal_stacks_become_one_row(void **state)
{
    struct fixture *f = *state;
    uint32_t twin[2] = {add_node(f->tree.profile, 0, "twin", 3, 1),
                        add_node(f->tree.profile, 0, "twin", 3, 9)};
    struct ef_fragment_sample samples[3] = {
        {twin[0], 1, 0}, {f->tree.leaves[0], 1, 0}, {twin[1], 2, 0}};
    uint32_t ticks[4] = {10, 20, 30, 40};
    struct ef_fragment fragment;

    free(f->tree.hashes);
    f->tree.hashes = NULL;
    assert_int_equal(ef_profile_hashes(f->tree.profile, &f->tree.hashes, NULL), EF_OK);
    assert_int_not_equal(twin[0], twin[1]);
    assert_true(f->tree.hashes[twin[0]] == f->tree.hashes[twin[1]]);
    fragment = fragment_of(&f->tree, samples, 0);
    fragment.samples = samples;
    fragment.sample_count = 3;
    fragment.tick_ms = ticks;
    fragment.tick_count = 4;
    open_publisher(f);
    assert_int_equal(ef_publisher_add(f->publisher, &fragment, &f->err), EF_OK);
    drain(f);
    ef_fake_lock(f->fake);
    assert_int_equal(f->fake->bad_messages, 0);
    assert_int_equal(ef_fake_map(&f->fake->stack_samples, f->tree.hashes[twin[0]]), 3);
    ef_fake_unlock(f->fake);
}

static void
full_dictionary_names_what_is_left_out(void **state)
{
    struct fixture *f = *state;
    struct ef_fragment_sample samples[LEAVES];
    struct ef_fragment fragment = fragment_of(&f->tree, samples, LEAVES);
    uint64_t limit_hash = ef_stack_hash(
        0, ef_function_hash(EF_STACK_LIMIT_NAME, strlen(EF_STACK_LIMIT_NAME), "", 0, 0), 0);
    uint64_t total = 0;

    f->options.dictionary_stacks_max = DEPTH + 4;
    open_publisher(f);
    assert_int_equal(ef_publisher_add(f->publisher, &fragment, &f->err), EF_OK);
    drain(f);
    assert_int_equal(stat_of(f).stacks_over_limit, LEAVES - 4);
    assert_int_equal(stat_of(f).dictionary_stacks, DEPTH + 4 + 1);
    for (uint64_t i = 4; i < LEAVES; i++)
        total += i + 1;
    ef_fake_lock(f->fake);
    assert_int_equal(ef_fake_map(&f->fake->stack_samples, limit_hash), total);
    assert_int_equal(ef_fake_map(&f->fake->stack_definitions, limit_hash), 1);
    assert_int_equal(f->fake->undefined_first, 0);
    ef_fake_unlock(f->fake);
}

/* Goal: a fragment whose definitions are larger than a batch travels behind several batches. */
static void
large_definitions_are_spread_over_batches(void **state)
{
    struct fixture *f = *state;
    struct ef_fragment_sample *samples = calloc(3000, sizeof(*samples));
    struct ef_fragment fragment = fragment_of(&f->tree, samples, 0);
    char name[400];

    for (uint32_t i = 0; i < 3000; i++) {
        memset(name, 'a' + (int)(i % 26), sizeof(name));
        snprintf(name + 380, 20, "%u", i);
        samples[i] =
            (struct ef_fragment_sample){add_node(f->tree.profile, 0, name, 1, 0), 1, 50000000};
    }
    free(f->tree.hashes);
    f->tree.hashes = NULL;
    assert_int_equal(ef_profile_hashes(f->tree.profile, &f->tree.hashes, NULL), EF_OK);
    fragment.hashes = f->tree.hashes;
    fragment.samples = samples;
    fragment.sample_count = 3000;
    open_publisher(f);
    assert_int_equal(ef_publisher_add(f->publisher, &fragment, &f->err), EF_OK);
    drain(f);
    ef_fake_lock(f->fake);
    assert_true(f->fake->batches_without_fragments >= 4); /* 1.3 MB by 256 KiB */
    assert_int_equal(f->fake->stack_definitions.count, 3000);
    assert_int_equal(f->fake->bad_messages, 0);
    ef_fake_unlock(f->fake);
    assert_int_equal(stat_of(f).fragments_published, 1);
    free(samples);
}

struct adder {
    struct fixture *f;
    struct tree tree;
    char instance[32], worker[32];
    unsigned failed;
};

static void *
add_many(void *arg)
{
    struct adder *adder = arg;
    struct ef_fragment_sample samples[4];

    for (int i = 0; i < 500; i++) {
        struct ef_fragment fragment = fragment_of(&adder->tree, samples, 4);
        struct ef_usage usage = {.source = source_of(adder->worker, adder->instance)};
        struct ef_publisher_stat stat;
        fragment.source = source_of(adder->worker, adder->instance);
        adder->failed += ef_publisher_add(adder->f->publisher, &fragment, NULL) != EF_OK;
        if (i % 50 == 0) {
            adder->failed += ef_publisher_add_usage(adder->f->publisher, &usage, NULL) != EF_OK;
            adder->failed += ef_publisher_flush(adder->f->publisher, NULL) != EF_OK;
            ef_publisher_get_stat(adder->f->publisher, &stat);
            ef_publisher_set_targets(adder->f->publisher, NULL, 0);
        }
    }
    return NULL;
}

static void
four_threads_may_add(void **state)
{
    struct fixture *f = *state;
    struct adder adders[4];
    pthread_t threads[4];
    char path[600];

    snprintf(path, sizeof(path), "%s/spool", f->folder);
    f->options.spool_path = path;
    open_publisher(f);
    wait_requests(f, 1);
    for (int i = 0; i < 4; i++) {
        adders[i] = (struct adder){.f = f};
        snprintf(adders[i].instance, sizeof(adders[i].instance), "pid:%d", i);
        snprintf(adders[i].worker, sizeof(adders[i].worker), "worker-%d", i % 2);
        make_tree(&adders[i].tree, i < 2 ? "leaf" : "other");
        pthread_create(&threads[i], NULL, add_many, &adders[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(adders[i].failed, 0);
        free_tree(&adders[i].tree);
    }
    drain(f);
    ef_fake_lock(f->fake);
    assert_int_equal(ef_fake_epoch(f->fake, stat_of(f).epoch)->fragments, 2000);
    assert_int_equal(ef_fake_epoch(f->fake, stat_of(f).epoch)->samples, 20000);
    assert_int_equal(f->fake->usages, 40);
    assert_int_equal(f->fake->bad_messages, 0);
    ef_fake_unlock(f->fake);
}

static double
seconds_to_free(struct fixture *f)
{
    ef_mono_ns from = ef_mono_now();

    ef_publisher_free(f->publisher);
    f->publisher = NULL;
    return (double)ef_mono_since(from, ef_mono_now()).ns / 1e9;
}

/* A listener whose process does not run: the kernel takes connections, nobody answers. */
static int
listen_deaf(int *ret_port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        fail_msg("cannot listen");
    *ret_port = ntohs(addr.sin_port);
    return fd;
}

static double
seconds_with_ports(struct fixture *f, int ingest, int sync)
{
    char ingest_url[64], sync_url[64];

    snprintf(ingest_url, sizeof(ingest_url), "tcp://127.0.0.1:%d", ingest);
    snprintf(sync_url, sizeof(sync_url), "tcp://127.0.0.1:%d", sync);
    f->options.ingest_url = ingest_url;
    f->options.sync_url = sync_url;
    open_publisher(f);
    add_batches(f, 20);
    assert_int_equal(ef_publisher_drain(f->publisher, 200, &f->err), EF_ETIMEOUT);
    return seconds_to_free(f);
}

static void
free_is_prompt_whatever_the_collector_does(void **state)
{
    struct fixture *f = *state;
    double alive, mute, deaf, absent;
    int ports[2], fds[2];

    open_publisher(f);
    wait_requests(f, 2);
    add_batches(f, 20);
    alive = seconds_to_free(f);
    ef_fake_lock(f->fake);
    f->fake->mute = true;
    ef_fake_unlock(f->fake);
    open_publisher(f);
    add_batches(f, 20);
    assert_int_equal(ef_publisher_drain(f->publisher, 200, &f->err), EF_ETIMEOUT);
    mute = seconds_to_free(f);
    fds[0] = listen_deaf(&ports[0]);
    fds[1] = listen_deaf(&ports[1]);
    deaf = seconds_with_ports(f, ports[0], ports[1]);
    close(fds[0]);
    close(fds[1]);
    absent = seconds_with_ports(f, ef_test_free_port(), ef_test_free_port());
    print_message("free: alive %.3f s, mute %.3f s, deaf %.3f s, absent %.3f s\n", alive, mute,
                  deaf, absent);
    assert_true(alive < 1.0 && mute < 1.0 && deaf < 1.0 && absent < 1.0);
}

/* Goal: sockets are opened and closed under traffic without a crash of nng 1.5.2. */
static void
many_short_lives_survive(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 24; i++) {
        open_publisher(f);
        add_batches(f, 5);
        if (i % 3 == 0)
            wait_requests(f, 1);
        ef_publisher_free(f->publisher);
        f->publisher = NULL;
        if (i % 12 == 11)
            ef_fake_forget(f->fake); /* it has room for 16 epochs */
    }
    ef_fake_lock(f->fake);
    assert_int_equal(f->fake->bad_messages, 0);
    ef_fake_unlock(f->fake);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(fragments_arrive_once_in_order_and_free_the_spool),
        TEST(definitions_travel_once_and_before_their_samples),
        TEST(wanted_definitions_come_again_with_all_callers),
        TEST(missing_batches_are_sent_again),
        TEST(outage_is_bridged),
        TEST(old_epoch_is_delivered_after_restart),
        TEST(a_folder_has_one_publisher),
        TEST(bad_options_are_refused),
        TEST(what_the_bound_forces_out_is_reported_exactly),
        TEST(collector_that_lost_its_state_can_move_on),
        TEST(replies_to_other_requests_are_ignored),
        TEST(directives_and_targets_pass),
        TEST(bad_fragments_are_refused_and_good_ones_pass),
        TEST(equal_stacks_become_one_row),
        TEST(full_dictionary_names_what_is_left_out),
        TEST(large_definitions_are_spread_over_batches),
        TEST(four_threads_may_add),
        TEST(free_is_prompt_whatever_the_collector_does),
        TEST(many_short_lives_survive),
    };

    return cmocka_run_group_tests_name("publisher", tests, NULL, NULL);
}
