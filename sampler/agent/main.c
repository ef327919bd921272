/*
 * everflame-agent: reads options and configuration, opens the publisher, runs the agent, and ends
 * in order. Decides nothing about sampling. Signals: SIGTERM and SIGINT stop (a second one at
 * once), SIGHUP reads the configuration's targets again. Main thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/log.h"
#include "sampler/agent/agent.h"
#include "sampler/agent/discovery.h"

#define DIRECTIVE_COLLECT 1 /* wire.proto */

struct program {
    struct ef_agent_options options;
    struct ef_config *config;  /* until the agent takes it */
    struct ef_config settings; /* a copy for ourselves, without its lists */
    struct ef_publisher *publisher;
    struct ef_agent *agent;
    bool connected, told_unreachable;
    uint64_t lost_told;
    ef_mono_ns begun;
};

/* --- the world of production ----------------------------------------------------------------- */

static ef_mono_ns
world_mono(void *arg)
{
    (void)arg;
    return ef_mono_now();
}

static ef_wall_ns
world_wall(void *arg)
{
    (void)arg;
    return ef_wall_now();
}

static uint64_t
world_random(void *arg)
{
    uint64_t number = 0;

    (void)arg;
    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number))
        number = (uint64_t)ef_mono_now().ns * UINT64_C(0x9e3779b97f4a7c15); /* at boot only */
    return number;
}

static bool
world_cpu(void *arg, int pid, int64_t *ret_ns)
{
    (void)arg;
    return ef_discovery_cpu("", pid, ret_ns);
}

static int
world_pid_of(void *arg, const char *host, uint16_t port, int hint_pid)
{
    (void)arg;
    return ef_discovery_pid_of("", host, port, hint_pid);
}

static bool
world_confined(void *arg, int pid)
{
    (void)arg;
    return ef_discovery_confined("", pid);
}

static size_t
world_threads(void *arg, int pid, struct ef_thread_time *threads, size_t threads_max)
{
    (void)arg;
    return ef_discovery_threads("", pid, threads, threads_max);
}

static bool
world_maps(void *arg, int pid, const char *library)
{
    (void)arg;
    return ef_discovery_maps("", pid, library);
}

static int
refuse_signal(void *arg, int pid, int number)
{
    (void)arg;
    (void)pid;
    (void)number;
    errno = EPERM;
    return -1;
}

static ef_rc
world_wake(void *arg, int pid, bool may_signal, uint16_t *ret_port, struct ef_err *err)
{
    ef_rc rc = ef_discovery_wake_node(
        "", pid, may_signal ? ef_discovery_send_signal : refuse_signal, NULL, ret_port, err);

    (void)arg;
    if (rc != EF_OK && !may_signal && rc != EF_ENOTFOUND && rc != EF_ECONFLICT)
        return ef_err_set(err, EF_EUNREACH,
                          "process %d has no open inspector; start it with --inspect, or allow "
                          "sigusr1: true",
                          pid);
    return rc;
}

static const struct ef_sampler_ops *
world_sampler(void *arg, const char *runtime)
{
    (void)arg;
    return ef_sampler_find(runtime);
}

static ef_rc
world_fragment(void *arg, const struct ef_fragment *fragment, struct ef_err *err)
{
    struct program *program = arg;

    return ef_publisher_add(program->publisher, fragment, err);
}

static ef_rc
world_usage(void *arg, const struct ef_usage *usage, struct ef_err *err)
{
    struct program *program = arg;

    return ef_publisher_add_usage(program->publisher, usage, err);
}

/* --- publisher ------------------------------------------------------------------------------- */

/* In the publisher's sync thread. The agent is there for as long as the publisher runs, but for its
 * first and last moments. */
static void
on_directive(void *arg, const struct ef_directive *directive)
{
    struct program *program = arg;
    struct ef_agent *agent = __atomic_load_n(&program->agent, __ATOMIC_ACQUIRE);

    if (agent != NULL && directive->kind == DIRECTIVE_COLLECT)
        (void)ef_agent_request(agent, directive->account, directive->worker, directive->version);
}

static void
on_status(void *arg, const struct ef_target_status *targets, size_t count)
{
    struct program *program = arg;

    ef_publisher_set_targets(program->publisher, targets, count);
}

/* Whoever handles the publisher's counters logs them, once per change. */
static void
watch_publisher(struct program *program)
{
    struct ef_publisher_stat stat;
    bool patient = ef_mono_since(program->begun, ef_mono_now()).ns < 5 * EF_NS_PER_S;

    ef_publisher_get_stat(program->publisher, &stat);
    if (stat.connected && (!program->connected || program->told_unreachable)) {
        EF_LOG(COLLECTOR_REACHED, "%s answers", program->settings.sync_url);
        program->told_unreachable = false;
    } else if (!stat.connected && !program->told_unreachable && !patient) {
        EF_LOG(COLLECTOR_UNREACHABLE,
               "%s does not answer; batches are kept, up to %" PRIu64 " bytes",
               program->settings.sync_url, program->settings.spool_bytes_max);
        program->told_unreachable = true;
    }
    program->connected = stat.connected;
    if (stat.fragments_lost > program->lost_told) {
        EF_LOG(PUBLISHER_LOSS,
               "%" PRIu64 " fragments with %" PRIu64
               " samples were forced out of the spool so far; raise spool.bytes_max",
               stat.fragments_lost, stat.samples_lost);
        program->lost_told = stat.fragments_lost;
    }
}

static ef_rc
open_publisher(struct program *program, struct ef_err *err)
{
    const struct ef_config *config = &program->settings;
    char name[EF_AGENT_NAME_BYTES + 32];
    struct ef_publisher_options options = {
        .ingest_url = config->ingest_url,
        .sync_url = config->sync_url,
        .key_file = config->key_file,
        .name = name,
        .spool_path =
            program->options.spool[0] != '\0' ? program->options.spool : config->spool_path,
        .spool_bytes_max = config->spool_bytes_max,
        .directive = on_directive,
        .arg = program,
    };

    snprintf(name, sizeof(name), "%s/everflame-agent", config->host);
    return ef_publisher_open(&options, &program->publisher, err);
}

static void
override_pause(const struct program *program, struct ef_config *config)
{
    if (program->options.pause_max_ms > 0)
        config->pause_max_ns = (int64_t)program->options.pause_max_ms * EF_NS_PER_MS;
}

/* --- signals --------------------------------------------------------------------------------- */

static sigset_t
our_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

/* A second SIGTERM or SIGINT does not wait for targets or the collector. */
static void
exit_at_once(int number)
{
    _exit(128 + number);
}

static void
arm_second_signal(void)
{
    struct sigaction action = {.sa_handler = exit_at_once};
    sigset_t set = our_signals();

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigdelset(&set, SIGHUP);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void
reload(struct program *program)
{
    struct ef_config *config = NULL;
    struct ef_err err = {0};

    if (ef_config_load(program->options.config, &config, &err) != EF_OK) {
        EF_LOG(CONFIG_PROBLEM, "reload: %s; the old configuration stays", err.msg);
        return;
    }
    if (strcmp(config->ingest_url, program->settings.ingest_url) != 0 ||
        strcmp(config->sync_url, program->settings.sync_url) != 0 ||
        strcmp(config->key_file, program->settings.key_file) != 0 ||
        strcmp(config->spool_path, program->settings.spool_path) != 0)
        EF_LOG(CONFIG_PROBLEM, "reload: collector and spool change only at a restart; targets, "
                               "scans, mappings and budget are taken");
    override_pause(program, config);
    ef_agent_reload(program->agent, config);
}

/* Once a second: the agent's tick; between, signals. Returns when asked to stop. */
static int
run(struct program *program)
{
    const struct timespec second = {1, 0};
    sigset_t set = our_signals();
    int number = 0;

    while (number != SIGTERM && number != SIGINT) {
        ef_agent_tick(program->agent, on_status, program);
        watch_publisher(program);
        number = sigtimedwait(&set, NULL, &second);
        if (number == SIGHUP)
            reload(program);
    }
    return number;
}

/* --- start and stop -------------------------------------------------------------------------- */

static ef_rc
print_reference(const char *what, struct ef_err *err)
{
    struct ef_buf out;

    ef_buf_init(&out, 1 << 20);
    if (strcmp(what, "options") == 0) {
        ef_option_reference(ef_agent_option_table, ef_agent_option_count, &out);
    } else if (strcmp(what, "events") == 0) {
        ef_log_reference(&out);
    } else {
        ef_buf_fini(&out);
        return ef_err_set(err, EF_EUSAGE, "'%s' is none of options, events, config", what);
    }
    fwrite(out.data, 1, out.len, stdout);
    ef_buf_fini(&out);
    return fflush(stdout) == 0 ? EF_OK : ef_err_errno(err, "standard output");
}

static void
print_help(void)
{
    printf("everflame-agent --config FILE [options]\n"
           "Samples V8 isolates (workerd, Node.js) at a given price and sends what it sees to "
           "everflamed.\n"
           "A commented configuration: ops/everflame-agent.yaml.example\n\n");
    ef_option_help(ef_agent_option_table, ef_agent_option_count, stdout);
}

static ef_rc
set_log_level(const char *level, struct ef_err *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};

    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        if (strcmp(names[i], level) == 0) {
            ef_log_set_level((enum ef_log_level)i);
            return EF_OK;
        }
    }
    return ef_err_set(err, EF_EUSAGE,
                      "option 'log_level': '%s' is none of error, warn, info, debug", level);
}

/* *ret_done: all was said already. */
static ef_rc
parse(struct program *program, int argc, char **argv, bool *ret_done, struct ef_err *err)
{
    bool help = false, version = false;
    ef_rc rc;

    ef_option_defaults(ef_agent_option_table, ef_agent_option_count, &program->options);
    rc = ef_option_parse_env(ef_agent_option_table, ef_agent_option_count, &program->options, err);
    if (rc == EF_OK)
        rc = ef_option_parse_argv(ef_agent_option_table, ef_agent_option_count, &program->options,
                                  &argc, argv, &help, &version, err);
    if (rc == EF_OK && argc > 1)
        rc = ef_err_set(err, EF_EUSAGE, "'%s' is not expected; --help lists the options", argv[1]);
    if (rc == EF_OK)
        rc = set_log_level(program->options.log_level, err);
    if (rc != EF_OK)
        return rc;
    *ret_done = help || version;
    if (help)
        print_help();
    else if (version)
        printf("everflame-agent " EF_VERSION "\n");
    if (*ret_done)
        return fflush(stdout) == 0 ? EF_OK : ef_err_errno(err, "standard output");
    if (program->options.print[0] != '\0' && strcmp(program->options.print, "config") != 0) {
        *ret_done = true;
        return print_reference(program->options.print, err);
    }
    if (program->options.config[0] == '\0')
        return ef_err_set(err, EF_EUSAGE,
                          "--config is missing; see ops/everflame-agent.yaml.example");
    return EF_OK;
}

static ef_rc
load(struct program *program, bool *ret_done, struct ef_err *err)
{
    ef_rc rc = ef_config_load(program->options.config, &program->config, err);

    if (rc != EF_OK)
        return rc;
    override_pause(program, program->config);
    if (strcmp(program->options.print, "config") == 0) {
        printf("%s: good; %zu targets and scans, %zu mappings\n", program->options.config,
               program->config->rule_count, program->config->mapping_count);
        *ret_done = true;
        return fflush(stdout) == 0 ? EF_OK : ef_err_errno(err, "standard output");
    }
    if (program->config->rule_count == 0)
        EF_LOG(CONFIG_PROBLEM, "'%s' has neither targets nor scans; waiting for SIGHUP",
               program->options.config);
    return EF_OK;
}

static ef_rc
stop(struct program *program, int number, struct ef_err *err)
{
    ef_rc rc;

    EF_LOG(PROGRAM_STOPPING,
           "signal %d: collecting the running profiles, then waiting at most "
           "%" PRIu64 " ms for the collector",
           number, program->options.drain_wait_ms);
    arm_second_signal();
    ef_agent_stop(program->agent);
    ef_agent_tick(program->agent, on_status, program);
    rc = ef_publisher_drain(program->publisher, program->options.drain_wait_ms, err);
    if (rc != EF_ETIMEOUT)
        return rc;
    EF_LOG(COLLECTOR_UNREACHABLE, "%s; %s", err->msg,
           program->options.spool[0] != '\0' || program->settings.spool_path[0] != '\0'
               ? "kept in the spool folder for the next start"
               : "dropped, because there is no spool folder");
    return EF_OK;
}

static ef_rc
serve(struct program *program, struct ef_err *err)
{
    struct ef_world world = {
        .arg = program,
        .mono = world_mono,
        .wall = world_wall,
        .random = world_random,
        .process_cpu = world_cpu,
        .pid_of = world_pid_of,
        .confined = world_confined,
        .threads = world_threads,
        .maps = world_maps,
        .wake = world_wake,
        .sampler = world_sampler,
        .add_fragment = world_fragment,
        .add_usage = world_usage,
    };
    sigset_t set = our_signals();
    const struct ef_config *config = &program->settings;
    struct ef_agent *agent = NULL;
    size_t rule_count = program->config->rule_count;
    ef_rc rc;

    /* Before any thread: they inherit it, so signals come to the main loop alone. */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    program->begun = ef_mono_now();
    program->settings = *program->config;
    program->settings.rules = NULL;
    program->settings.mappings = NULL;
    rc = open_publisher(program, err);
    if (rc != EF_OK) {
        ef_config_free(program->config);
        return rc;
    }
    rc = ef_agent_open(&world, &program->options, program->config, &agent, err);
    if (rc == EF_OK) {
        __atomic_store_n(&program->agent, agent, __ATOMIC_RELEASE);
        EF_LOG(PROGRAM_STARTED,
               "everflame-agent " EF_VERSION " on '%s': %zu targets and scans, "
               "budget %.2g of a core, to %s",
               config->host, rule_count,
               program->options.cpu_ratio > 0 ? program->options.cpu_ratio : config->cpu_ratio,
               config->ingest_url);
        rc = stop(program, run(program), err);
    }
    /* The publisher's thread may still call on_directive: it goes first. */
    ef_publisher_free(program->publisher);
    ef_agent_free(agent);
    return rc;
}

int
main(int argc, char **argv)
{
    static struct program program;
    struct ef_err err = {0};
    bool done = false;
    ef_rc rc = parse(&program, argc, argv, &done, &err);

    if (rc == EF_OK && !done)
        rc = load(&program, &done, &err);
    if (rc == EF_OK && !done)
        rc = serve(&program, &err);
    if (rc == EF_OK)
        return 0;
    fprintf(stderr, "everflame-agent: %s\n", err.msg);
    return ef_rc_exit(rc);
}
