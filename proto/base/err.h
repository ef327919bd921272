/*
 * Result codes and the error message that travels with them.
 *
 * A fallible function returns ef_rc (0 good, negative bad) and takes `struct ef_err *err` last; err
 * may be NULL. The function that knows the reason sets the text, callers add a prefix. The text is
 * complete enough to show to an operator.
 */
#ifndef PROTO_BASE_ERR_H
#define PROTO_BASE_ERR_H

#include <stdbool.h>
#include <stdint.h>

typedef int ef_rc;

enum ef_rc_code {
#define X(name, number, sentence, retry, http, exit) name = number,
#include "proto/base/rc.def"
#undef X
};

#define EF_ERR_TEXT_MAX 512 /* Bytes with the final NUL; longer texts are cut at the end. */

struct ef_err {
    ef_rc rc;
    char msg[EF_ERR_TEXT_MAX];
};

#define EF_MUST_USE __attribute__((warn_unused_result))
#define EF_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
/* Says aloud that an error is ignored on purpose. */
#define EF_IGNORE(call, reason)                                                                    \
    do {                                                                                           \
        if (call) {                                                                                \
        }                                                                                          \
    } while (0)

/* Sets code and text; returns rc, so that `return ef_err_set(...)` reads well. Does not allocate.
 */
ef_rc ef_err_set(struct ef_err *err, ef_rc rc, const char *fmt, ...) EF_PRINTF(3, 4);
/* Puts "<text>: " before the present message. Keeps the code. */
void ef_err_prefix(struct ef_err *err, const char *fmt, ...) EF_PRINTF(2, 3);
/* Sets code (EF_ENOSPC for ENOSPC and EDQUOT, EF_ENOMEM, EF_ENOTFOUND for ENOENT, otherwise EF_EIO)
 * and text from errno. */
ef_rc ef_err_errno(struct ef_err *err, const char *fmt, ...) EF_PRINTF(2, 3);

#ifdef __clang_analyzer__
/* The static analyzer looks at one file at a time and would take each failure for a success, too.
 * It is told what it cannot see: these give the code that they were given, or another failure. */
#define ef_err_set(err, rc, ...) ((void)(ef_err_set)((err), (rc), __VA_ARGS__), (rc))
#define ef_err_errno(err, ...) ((void)(ef_err_errno)((err), __VA_ARGS__), EF_EIO)
#endif

const char *ef_rc_name(ef_rc rc);     /* "EF_ELIMIT"; "EF_UNKNOWN" for other numbers */
const char *ef_rc_sentence(ef_rc rc); /* "a limit is reached" */
bool ef_rc_retry(ef_rc rc);           /* Whether trying again later may help. */
int ef_rc_http(ef_rc rc);             /* HTTP status */
int ef_rc_exit(ef_rc rc);             /* exit code of a program */

/*
 * For our own bugs only, never for input. Stays on in release. Not for sampler/lib (guest rule: use
 * ef_guest_check there).
 */
void ef_assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define EF_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (!(expr))                                                                               \
            ef_assert_failed(#expr, __FILE__, __LINE__);                                           \
    } while (0)

#define EF_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
