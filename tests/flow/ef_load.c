/*
 * A publisher with known truth: sends synthetic fragments through libeverflame and keeps a journal
 * of exactly what it handed over, which survives kill -9. For the fault tests; must not know the
 * collector's inside. One thread per publisher.
 *
 * Journal file, 4 × le64: fragments begun, samples begun, fragments done, samples done. "Begun" is
 * written before the fragments of a batch are added, "done" after ef_publisher_flush has put them
 * into the spool: whatever moment the process dies, the collector must end with done ≤ stored ≤
 * begun.
 */
#include <getopt.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/time.h"
#include "sampler/lib/publisher.h"

#define STACKS_MAX 20000

static struct {
    const char *ingest, *sync, *spool, *journal, *worker, *version, *key_file;
    double seconds, rate; /* fragments per second and publisher */
    unsigned samples, stacks, publishers, per_batch, versions;
    uint64_t seed, spool_bytes_max, drain_ms, back_ms;
} plan = {.worker = "load",
          .version = "v1",
          .seconds = 10,
          .rate = 100,
          .samples = 20,
          .stacks = 500,
          .publishers = 1,
          .per_batch = 20,
          .versions = 1,
          .drain_ms = 20000};

static volatile sig_atomic_t stop_asked;

struct one {
    unsigned index;
    pthread_t thread;
    uint64_t random;
    struct ef_publisher_stat stat;
    uint64_t journal[4];
    uint64_t batches;
    bool drained;
    char problem[EF_ERR_TEXT_MAX];
};

static void
on_signal(int number)
{
    (void)number;
    stop_asked = 1;
}

static uint64_t
next_random(uint64_t *state)
{
    /* splitmix64 (Steele, Lea, Flood 2014). */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A tree of main > group<i mod 50> > leaf<i>; nodes[i] is leaf i. */
static ef_rc
make_tree(struct ef_profile **ret_profile, uint32_t *nodes, struct ef_err *err)
{
    struct ef_profile *profile = NULL;
    ef_rc rc = ef_profile_open(&ef_profile_limits_default, &profile, err);

    if (rc == EF_OK)
        rc = ef_profile_add_type(profile, "samples", "count", err);
    for (unsigned i = 0; rc == EF_OK && i < plan.stacks; i++) {
        char names[3][32] = {"main", "", ""};
        uint32_t node = 0;
        snprintf(names[1], sizeof(names[1]), "group%u", i % 50);
        snprintf(names[2], sizeof(names[2]), "leaf%u", i);
        for (int depth = 0; rc == EF_OK && depth < 3; depth++) {
            struct ef_profile_function function = {.start_line = 1};
            struct ef_profile_frame frame = {0};
            rc = ef_profile_add_string(profile, names[depth], strlen(names[depth]), &function.name,
                                       err);
            if (rc == EF_OK)
                rc = ef_profile_add_string(profile, "load.js", 7, &function.file, err);
            if (rc == EF_OK)
                rc = ef_profile_add_function(profile, &function, &frame.function, err);
            uint32_t frame_id = 0;
            if (rc == EF_OK)
                rc = ef_profile_add_frame(profile, &frame, &frame_id, err);
            if (rc == EF_OK)
                rc = ef_profile_add_node(profile, node, frame_id, &node, err);
        }
        nodes[i] = node;
    }
    *ret_profile = profile;
    return rc;
}

static void
write_journal(int fd, const uint64_t journal[4])
{
    if (pwrite(fd, journal, 4 * sizeof(*journal), 0) != (ssize_t)(4 * sizeof(*journal))) {
        fprintf(stderr, "ef-load: cannot write the journal\n");
        exit(1);
    }
}

static ef_rc
send_batch(struct one *one, struct ef_publisher *publisher, const struct ef_profile *profile,
           const uint64_t *hashes, const uint32_t *nodes, int journal_fd, struct ef_err *err)
{
    char instance[32], version[48];
    ef_rc rc = EF_OK;

    /* Further versions are named after the first: many definitions, many series. */
    snprintf(version, sizeof(version), "%.30s", plan.version);
    if (plan.versions > 1)
        snprintf(version, sizeof(version), "%.30s-%u", plan.version,
                 (unsigned)(one->batches++ % plan.versions));

    snprintf(instance, sizeof(instance), "i%u", one->index);
    one->journal[0] += plan.per_batch;
    one->journal[1] += (uint64_t)plan.per_batch * plan.samples;
    write_journal(journal_fd, one->journal);
    for (unsigned f = 0; rc == EF_OK && f < plan.per_batch; f++) {
        struct ef_fragment_sample samples[1024];
        size_t count = 0;
        for (unsigned s = 0; s < plan.samples; s++) {
            uint32_t node = nodes[next_random(&one->random) % plan.stacks];
            size_t at = 0;
            while (at < count && samples[at].node != node)
                at++;
            if (at == count)
                samples[count++] = (struct ef_fragment_sample){.node = node};
            samples[at].count++;
            samples[at].value += 10000000;
        }
        struct ef_fragment fragment = {
            .source =
                {"load", plan.worker, version, instance, "host", "test", "synthetic", {0}, {0}, 0},
            .profile_type = 1,
            .start_ns = ef_wall_now().ns - 1000000000 - (int64_t)plan.back_ms * EF_NS_PER_MS,
            .span_ns = 1000000000,
            .interval = 10000000,
            .profile = profile,
            .hashes = hashes,
            .samples = samples,
            .sample_count = count,
        };
        rc = ef_publisher_add(publisher, &fragment, err);
    }
    if (rc == EF_OK)
        rc = ef_publisher_flush(publisher, err);
    if (rc == EF_OK) {
        one->journal[2] = one->journal[0];
        one->journal[3] = one->journal[1];
        write_journal(journal_fd, one->journal);
    }
    return rc;
}

static void *
run_one(void *arg)
{
    struct one *one = arg;
    struct ef_publisher *publisher = NULL;
    struct ef_profile *profile = NULL;
    struct ef_err err = {0};
    uint64_t *hashes = NULL;
    uint32_t *nodes = calloc(STACKS_MAX, sizeof(*nodes));
    char spool[1024] = "", name[64], journal[1024];
    int journal_fd = -1;
    ef_rc rc;

    snprintf(name, sizeof(name), "load-%u", one->index);
    if (plan.spool != NULL)
        snprintf(spool, sizeof(spool), "%s/%u", plan.spool, one->index);
    snprintf(journal, sizeof(journal), "%s.%u", plan.journal, one->index);
    journal_fd = open(journal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct ef_publisher_options options = {
        .ingest_url = plan.ingest,
        .sync_url = plan.sync,
        .name = name,
        .key_file = plan.key_file,
        .spool_path = spool,
        .spool_bytes_max = plan.spool_bytes_max,
        .batch_fragments_max = plan.per_batch,
        .sync_interval_ms = 200,
    };
    one->random = plan.seed + one->index;
    rc = journal_fd >= 0 && nodes != NULL ? EF_OK
                                          : ef_err_set(&err, EF_EIO, "no journal '%s'", journal);
    if (rc == EF_OK)
        rc = make_tree(&profile, nodes, &err);
    if (rc == EF_OK)
        rc = ef_profile_hashes(profile, &hashes, &err);
    if (rc == EF_OK)
        rc = ef_publisher_open(&options, &publisher, &err);
    ef_mono_ns started = ef_mono_now();
    uint64_t batches = 0;
    while (rc == EF_OK && !stop_asked) {
        double elapsed = (double)ef_mono_since(started, ef_mono_now()).ns / 1e9;
        double due = (double)batches * plan.per_batch / plan.rate;
        if (elapsed >= plan.seconds)
            break;
        if (due > elapsed) {
            usleep(due - elapsed > 0.05 ? 50000 : (useconds_t)((due - elapsed) * 1e6));
            continue;
        }
        rc = send_batch(one, publisher, profile, hashes, nodes, journal_fd, &err);
        batches++;
    }
    if (rc == EF_OK)
        one->drained = ef_publisher_drain(publisher, plan.drain_ms, &err) == EF_OK;
    snprintf(one->problem, sizeof(one->problem), "%s", err.msg);
    if (publisher != NULL)
        ef_publisher_get_stat(publisher, &one->stat);
    ef_publisher_free(publisher);
    ef_profile_free(profile);
    free(hashes);
    free(nodes);
    if (journal_fd >= 0)
        close(journal_fd);
    return NULL;
}

static void
parse(int argc, char **argv)
{
    static const struct option flags[] = {{"ingest", 1, 0, 'i'},
                                          {"sync", 1, 0, 'y'},
                                          {"spool", 1, 0, 's'},
                                          {"journal", 1, 0, 'j'},
                                          {"worker", 1, 0, 'w'},
                                          {"version", 1, 0, 'v'},
                                          {"seconds", 1, 0, 't'},
                                          {"rate", 1, 0, 'r'},
                                          {"samples", 1, 0, 'n'},
                                          {"stacks", 1, 0, 'k'},
                                          {"seed", 1, 0, 'e'},
                                          {"publishers", 1, 0, 'p'},
                                          {"per-batch", 1, 0, 'b'},
                                          {"spool-max", 1, 0, 'm'},
                                          {"drain-ms", 1, 0, 'd'},
                                          {"key-file", 1, 0, 'f'},
                                          {"versions", 1, 0, 'V'},
                                          {"back-ms", 1, 0, 'B'},
                                          {0, 0, 0, 0}};

    for (int c; (c = getopt_long(argc, argv, "", flags, NULL)) != -1;) {
        switch (c) {
        case 'i':
            plan.ingest = optarg;
            break;
        case 'y':
            plan.sync = optarg;
            break;
        case 's':
            plan.spool = optarg;
            break;
        case 'j':
            plan.journal = optarg;
            break;
        case 'w':
            plan.worker = optarg;
            break;
        case 'v':
            plan.version = optarg;
            break;
        case 'f':
            plan.key_file = optarg;
            break;
        case 't':
            plan.seconds = strtod(optarg, NULL);
            break;
        case 'r':
            plan.rate = strtod(optarg, NULL);
            break;
        case 'n':
            plan.samples = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'k':
            plan.stacks = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'p':
            plan.publishers = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'b':
            plan.per_batch = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'e':
            plan.seed = strtoull(optarg, NULL, 10);
            break;
        case 'm':
            plan.spool_bytes_max = strtoull(optarg, NULL, 10);
            break;
        case 'd':
            plan.drain_ms = strtoull(optarg, NULL, 10);
            break;
        case 'V':
            plan.versions = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'B':
            plan.back_ms = strtoull(optarg, NULL, 10);
            break;
        default:
            exit(2);
        }
    }
    if (plan.ingest == NULL || plan.sync == NULL || plan.journal == NULL || plan.samples > 1024 ||
        plan.stacks > STACKS_MAX || plan.publishers > 64 || plan.rate <= 0) {
        fprintf(stderr, "ef-load: --ingest, --sync, --journal are required; see the source\n");
        exit(2);
    }
}

int
main(int argc, char **argv)
{
    static struct one all[64];
    struct sigaction action = {.sa_handler = on_signal};
    int failed = 0;

    parse(argc, argv);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (plan.spool != NULL)
        mkdir(plan.spool, 0700);
    for (unsigned i = 0; i < plan.publishers; i++) {
        all[i].index = i;
        if (pthread_create(&all[i].thread, NULL, run_one, &all[i]) != 0)
            return 1;
    }
    for (unsigned i = 0; i < plan.publishers; i++) {
        struct one *one = &all[i];
        pthread_join(one->thread, NULL);
        printf("{\"publisher\": %u, \"fragments\": %" PRIu64 ", \"samples\": %" PRIu64
               ", \"fragments_lost\": %" PRIu64 ", \"samples_lost\": %" PRIu64
               ", \"held\": %" PRIu64 ", \"resent\": %" PRIu64
               ", \"drained\": %s, \"problem\": \"%s\"}\n",
               i, one->journal[2], one->journal[3], one->stat.fragments_lost,
               one->stat.samples_lost, one->stat.batches_held, one->stat.batches_resent,
               one->drained ? "true" : "false", one->problem);
        failed |= !one->drained;
    }
    return failed;
}
