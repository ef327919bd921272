/*
 * What /proc tells, on a /proc made by the test; and that SIGUSR1 goes to nobody who would die of
 * it.
 */
#include "tests/support/ef_test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sampler/agent/discovery.h"

#define CATCHES_USR1 "Name:\tnode\nSigCgt:\t0000000000000200\nCpus_allowed_list:\t0-1\n"

static const char *
root_of(void **state)
{
    return *state;
}

static void
write_file(const char *root, const char *path, const char *text, size_t len)
{
    char full[512];
    FILE *file;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
        *at = '/';
    }
    file = fopen(full, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    fclose(file);
}

static void
write_text(const char *root, const char *path, const char *text)
{
    write_file(root, path, text, strlen(text));
}

static void
link_to(const char *root, const char *path, const char *target)
{
    char full[512];

    write_text(root, path, "");
    snprintf(full, sizeof(full), "%s/%s", root, path);
    assert_int_equal(unlink(full), 0);
    assert_int_equal(symlink(target, full), 0);
}

static void
add_listener(const char *root, const char *address_hex, unsigned port, unsigned inode)
{
    char line[512];

    snprintf(line, sizeof(line),
             "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
             "timeout inode\n"
             "   0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0"
             "        0 1 1 0000000000000000 20 4 30 10 -1\n"
             "   1: %s:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
             "%u 1 0000000000000000 100 0 0 10 0\n",
             address_hex, port, inode);
    write_text(root, "proc/net/tcp", line);
}

static int
setup(void **state)
{
    *state = ef_test_tmpdir();
    return *state == NULL;
}

static int
teardown(void **state)
{
    ef_test_tmpdir_remove(*state);
    return 0;
}

static void
pid_is_found_by_the_inode_of_its_listening_socket(void **state)
{
    const char *root = root_of(state);

    add_listener(root, "0100007F", 9229, 4711);
    link_to(root, "proc/100/fd/3", "socket:[9]");
    link_to(root, "proc/200/fd/7", "socket:[4711]");
    link_to(root, "proc/self/fd/1", "socket:[4711]");
    assert_int_equal(ef_discovery_pid_of(root, "127.0.0.1", 9229, 0), 200);
    assert_int_equal(ef_discovery_pid_of(root, "localhost", 9229, 100), 200);
    assert_int_equal(ef_discovery_pid_of(root, "127.0.0.1", 9230, 0), 0);
    assert_int_equal(ef_discovery_pid_of(root, "127.0.0.1", 8080, 0), 0); /* not listening */
    assert_int_equal(ef_discovery_pid_of(root, "10.0.0.1", 9229, 0), 0);
    assert_true(ef_discovery_listens(root, "127.0.0.1", 9229));
    assert_false(ef_discovery_listens(root, "127.0.0.1", 9230));
    assert_true(ef_discovery_listens(root, "10.0.0.1", 9230)); /* another host: must be asked */
}

static void
wildcard_listener_serves_loopback_but_not_other_hosts(void **state)
{
    const char *root = root_of(state);

    add_listener(root, "00000000", 9229, 4711);
    link_to(root, "proc/200/fd/7", "socket:[4711]");
    assert_int_equal(ef_discovery_pid_of(root, "127.0.0.1", 9229, 0), 200);
    assert_int_equal(ef_discovery_pid_of(root, "10.1.2.3", 9229, 0), 0);
}

static void
absent_proc_gives_nothing(void **state)
{
    const char *root = root_of(state);

    assert_int_equal(ef_discovery_pid_of(root, "127.0.0.1", 9229, 5), 0);
    assert_false(ef_discovery_is_node(root, 5));
    assert_int_equal(ef_discovery_inspect_port(root, 5), 9229);
    assert_false(ef_discovery_confined(root, 5));
}

static void
inspect_port_comes_from_command_line_then_environment_then_default(void **state)
{
    static const char cmdline[] = "node\0--inspect-port=9301\0app.js\0--inspect-port=1";
    static const char plain[] = "node\0app.js";
    static const char environ_text[] = "PATH=/bin\0NODE_OPTIONS=--max-old-space-size=100 "
                                       "--inspect-port=127.0.0.1:9400\0X=1";
    const char *root = root_of(state);

    write_file(root, "proc/5/environ", environ_text, sizeof(environ_text));
    write_file(root, "proc/5/cmdline", plain, sizeof(plain));
    assert_int_equal(ef_discovery_inspect_port(root, 5), 9400);
    write_file(root, "proc/5/cmdline", cmdline, sizeof(cmdline));
    assert_int_equal(ef_discovery_inspect_port(root, 5), 9301);
    assert_int_equal(ef_discovery_inspect_port(root, 6), 9229);
}

struct sent {
    int count, pid, number;
};

static int
record_signal(void *arg, int pid, int number)
{
    struct sent *sent = arg;

    sent->count++;
    sent->pid = pid;
    sent->number = number;
    return 0;
}

static void
node_is_woken_by_one_signal(void **state)
{
    const char *root = root_of(state);
    struct sent sent = {0, 0, 0};
    uint16_t port = 0;

    link_to(root, "proc/77/exe", "/usr/bin/node");
    write_text(root, "proc/77/status", CATCHES_USR1);
    assert_int_equal(ef_discovery_wake_node(root, 77, record_signal, &sent, &port, NULL), EF_OK);
    assert_int_equal(sent.count, 1);
    assert_int_equal(sent.pid, 77);
    assert_int_equal(sent.number, SIGUSR1);
    assert_int_equal(port, 9229);
}

static void
open_inspector_needs_no_signal(void **state)
{
    const char *root = root_of(state);
    struct sent sent = {0, 0, 0};
    uint16_t port = 0;

    link_to(root, "proc/77/exe", "/usr/bin/node");
    write_text(root, "proc/77/status", CATCHES_USR1);
    add_listener(root, "0100007F", 9229, 4711);
    link_to(root, "proc/77/fd/20", "socket:[4711]");
    assert_int_equal(ef_discovery_wake_node(root, 77, record_signal, &sent, &port, NULL), EF_OK);
    assert_int_equal(sent.count, 0);
    assert_int_equal(port, 9229);
}

/* Goal: SIGUSR1 ends a process that does not catch it, so each doubt means: do not send. */
static void
nobody_is_signalled_who_would_die_of_it(void **state)
{
    const char *root = root_of(state);
    struct sent sent = {0, 0, 0};
    struct ef_err err = {0};
    uint16_t port = 0;

    assert_int_equal(ef_discovery_wake_node(root, 77, record_signal, &sent, &port, &err),
                     EF_ENOTFOUND);
    link_to(root, "proc/77/exe", "/usr/bin/python3");
    write_text(root, "proc/77/status", CATCHES_USR1);
    assert_int_equal(ef_discovery_wake_node(root, 77, record_signal, &sent, &port, &err),
                     EF_EUNSUP);
    assert_non_null(strstr(err.msg, "not node"));
    link_to(root, "proc/78/exe", "/usr/bin/node");
    write_text(root, "proc/78/status", "Name:\tnode\nSigCgt:\t0000000000000100\n");
    assert_int_equal(ef_discovery_wake_node(root, 78, record_signal, &sent, &port, &err),
                     EF_EUNSUP);
    link_to(root, "proc/79/exe", "/usr/bin/node");
    assert_int_equal(ef_discovery_wake_node(root, 79, record_signal, &sent, &port, &err),
                     EF_EUNSUP); /* no status */
    assert_int_equal(sent.count, 0);
}

static void
busy_port_is_told_and_not_signalled(void **state)
{
    const char *root = root_of(state);
    struct sent sent = {0, 0, 0};
    struct ef_err err = {0};
    uint16_t port = 0;

    link_to(root, "proc/77/exe", "/usr/bin/node");
    write_text(root, "proc/77/status", CATCHES_USR1);
    add_listener(root, "0100007F", 9229, 4711);
    link_to(root, "proc/300/fd/20", "socket:[4711]");
    assert_int_equal(ef_discovery_wake_node(root, 77, record_signal, &sent, &port, &err),
                     EF_ECONFLICT);
    assert_non_null(strstr(err.msg, "300"));
    assert_int_equal(sent.count, 0);
}

/* The real sender checks once more by itself: this test is no node and does not catch SIGUSR1. */
static void
real_sender_refuses_a_process_that_is_not_node(void **state)
{
    (void)state;
    assert_int_equal(ef_discovery_send_signal(NULL, getpid(), SIGUSR1), -1);
}

static void
confinement_is_affinity_cpuset_or_quota_of_any_ancestor(void **state)
{
    const char *root = root_of(state);

    write_text(root, "proc/5/status", "Name:\tx\nCpus_allowed_list:\t3\n");
    assert_true(ef_discovery_confined(root, 5));
    write_text(root, "proc/5/status", "Name:\tx\nCpus_allowed_list:\t0-1\n");
    assert_false(ef_discovery_confined(root, 5));
    write_text(root, "proc/5/cgroup", "0::/a/b\n");
    write_text(root, "sys/fs/cgroup/a/b/cpuset.cpus.effective", "0-3\n");
    write_text(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_false(ef_discovery_confined(root, 5));
    write_text(root, "sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    assert_true(ef_discovery_confined(root, 5));
    write_text(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    assert_false(ef_discovery_confined(root, 5));
    write_text(root, "sys/fs/cgroup/a/b/cpuset.cpus.effective", "2\n");
    assert_true(ef_discovery_confined(root, 5));
}

static void
cpu_is_read_from_stat_when_there_is_no_clock(void **state)
{
    const char *root = root_of(state);
    int64_t ns = -1;

    write_text(root, "proc/5/stat",
               "5 (a) b (c) S 1 5 5 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 100 0 0\n");
    assert_true(ef_discovery_cpu(root, 5, &ns));
    assert_int_equal(ns, (int64_t)(300.0 / (double)sysconf(_SC_CLK_TCK) * 1e9));
    assert_false(ef_discovery_cpu(root, 6, &ns));
}

static void
cpu_of_a_live_process_rises(void **state)
{
    int64_t before = 0, now = 0;
    volatile unsigned sink = 0; /* Its value is of no interest, the work is. */

    (void)state;
    assert_true(ef_discovery_cpu("", getpid(), &before));
    do {
        for (unsigned i = 0; i < 100000; i++)
            sink += i;
        assert_true(ef_discovery_cpu("", getpid(), &now));
    } while (now - before < 1000000);
    assert_true(now > before);
}

static void
library_is_found_by_the_name_of_a_mapped_file(void **state)
{
    const char *root = root_of(state);

    write_text(root, "proc/5/maps",
               "55d0-55d1 r-xp 00000000 08:01 11 /opt/libeverflame-guard/workerd\n"
               "7f00-7f01 rw-p 00000000 00:00 0 \n"
               "7ffc-7ffd rw-p 00000000 00:00 0 [stack]\n");
    assert_false(ef_discovery_maps(root, 5, "libeverflame-guard")); /* a folder is no library */
    assert_false(ef_discovery_maps(root, 6, "libeverflame-guard"));
    write_text(root, "proc/5/maps",
               "55d0-55d1 r-xp 00000000 08:01 11 /opt/workerd\n"
               "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libeverflame-guard.so (deleted)\n");
    assert_true(ef_discovery_maps(root, 5, "libeverflame-guard"));
}

static void
threads_tell_how_long_they_ran_and_waited(void **state)
{
    const char *root = root_of(state);
    struct ef_thread_time threads[4];
    size_t first;

    write_text(root, "proc/5/task/5/schedstat", "67310748 95917673 13\n");
    write_text(root, "proc/5/task/77/schedstat", "5 0 1\n");
    assert_int_equal(ef_discovery_threads(root, 5, threads, 4), 2);
    first = threads[0].tid == 5 ? 0 : 1;
    assert_int_equal(threads[first].run_ns, 67310748);
    assert_int_equal(threads[first].wait_ns, 95917673);
    assert_int_equal(threads[1 - first].tid, 77);
    assert_int_equal(threads[1 - first].run_ns, 5);
    assert_int_equal(ef_discovery_threads(root, 5, threads, 1), 1);
    assert_int_equal(ef_discovery_threads(root, 6, threads, 4), 0);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(pid_is_found_by_the_inode_of_its_listening_socket),
        TEST(wildcard_listener_serves_loopback_but_not_other_hosts),
        TEST(absent_proc_gives_nothing),
        TEST(inspect_port_comes_from_command_line_then_environment_then_default),
        TEST(node_is_woken_by_one_signal),
        TEST(open_inspector_needs_no_signal),
        TEST(nobody_is_signalled_who_would_die_of_it),
        TEST(busy_port_is_told_and_not_signalled),
        TEST(real_sender_refuses_a_process_that_is_not_node),
        TEST(confinement_is_affinity_cpuset_or_quota_of_any_ancestor),
        TEST(library_is_found_by_the_name_of_a_mapped_file),
        TEST(threads_tell_how_long_they_ran_and_waited),
        TEST(cpu_is_read_from_stat_when_there_is_no_clock),
        TEST(cpu_of_a_live_process_rises),
    };

    return cmocka_run_group_tests_name("sampler.agent.discovery", tests, NULL, NULL);
}
