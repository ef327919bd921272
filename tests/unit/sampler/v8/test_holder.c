/*
 * Who holds an inspector, from the kernel's tables: our own connections do not count, others do.
 */
#include "tests/support/ef_test.h"

#include "sampler/v8/holder.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/time.h"

struct fixture {
    int listener;
    struct sockaddr_in addr;
    uint16_t port;
};

static int
setup(void **state)
{
    struct fixture *f = test_calloc(1, sizeof(*f));
    socklen_t len = sizeof(f->addr);

    f->addr.sin_family = AF_INET;
    f->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(f->listener, (struct sockaddr *)&f->addr, len) != 0 || listen(f->listener, 8) != 0 ||
        getsockname(f->listener, (struct sockaddr *)&f->addr, &len) != 0)
        return -1;
    f->port = ntohs(f->addr.sin_port);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    close(f->listener);
    test_free(f);
    return 0;
}

static int
connect_to(const struct fixture *f)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&f->addr, sizeof(f->addr)), 0);
    return fd;
}

static void
nobody_and_ourselves_are_no_holder(void **state)
{
    struct fixture *f = *state;
    int fd;

    assert_int_equal(ef_holder_look(getpid(), f->port), EF_HOLDER_NONE);
    fd = connect_to(f);
    assert_int_equal(ef_holder_look(getpid(), f->port), EF_HOLDER_NONE);
    assert_int_equal(ef_holder_look(0, f->port), EF_HOLDER_NONE);
    close(fd);
}

static void
another_process_is_a_holder_until_it_goes(void **state)
{
    struct fixture *f = *state;
    int ready[2], own = connect_to(f);
    char c;
    pid_t child;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&f->addr, sizeof(f->addr)) != 0 ||
            write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(ef_holder_look(getpid(), f->port), EF_HOLDER_OTHER);
    assert_int_equal(ef_holder_look(0, f->port), EF_HOLDER_OTHER);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(ef_holder_look(0, f->port), EF_HOLDER_NONE);
    close(own);
    close(ready[0]);
    close(ready[1]);
}

static void
process_that_is_gone_is_unknown(void **state)
{
    struct fixture *f = *state;
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    assert_int_equal(ef_holder_look(child, f->port), EF_HOLDER_UNKNOWN);
}

/* Goal: the wait ends when the other end closes, and by itself when that never happens. */
static void
close_is_awaited_within_its_limit(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_in local;
    socklen_t len = sizeof(local);
    int fd = connect_to(f), peer = accept(f->listener, NULL, NULL);
    ef_mono_ns begun = ef_mono_now();

    assert_int_equal(getsockname(fd, (struct sockaddr *)&local, &len), 0);
    close(fd);
    ef_holder_await_closed(ntohs(local.sin_port), f->port, 50);
    assert_true(ef_mono_since(begun, ef_mono_now()).ns >= 50 * EF_NS_PER_MS);
    close(peer);
    begun = ef_mono_now();
    ef_holder_await_closed(ntohs(local.sin_port), f->port, 60000);
    assert_true(ef_mono_since(begun, ef_mono_now()).ns < 30 * EF_NS_PER_S);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(nobody_and_ourselves_are_no_holder),
        T(another_process_is_a_holder_until_it_goes),
        T(process_that_is_gone_is_unknown),
        T(close_is_awaited_within_its_limit),
    };
    return cmocka_run_group_tests_name("sampler/v8/holder", tests, NULL, NULL);
}
