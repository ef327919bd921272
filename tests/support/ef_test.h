/*
 * Include this first in every C test: cmocka wants these headers in this order.
 */
#ifndef TESTS_SUPPORT_EF_TEST_H
#define TESTS_SUPPORT_EF_TEST_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

/* Makes a fresh folder under TMPDIR; gives the path (free with ef_test_tmpdir_remove). */
char *ef_test_tmpdir(void);
/* Removes the folder with all it holds and frees the path. */
void ef_test_tmpdir_remove(char *path);
/* A TCP port on 127.0.0.1 that nobody listens on at this moment. */
int ef_test_free_port(void);
/* Reads a whole file under tests/data or an absolute path; gives the bytes (free()); fails the test
 * if absent. */
uint8_t *ef_test_read_file(const char *path, size_t *ret_len);
/* The seed for random tests: EF_TEST_SEED if set, otherwise from the clock. Printed, so that it can
 * be taken back. */
uint64_t ef_test_seed(void);

#endif
