/*
 * Decides how errors are worded and which code an errno becomes. Must not know any module. Any
 * thread.
 */
#include "proto/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rc_row {
    ef_rc rc;
    const char *name;
    const char *sentence;
    bool retry;
    int http;
    int exit_code;
};

static const struct rc_row rc_rows[] = {
#define X(name, number, sentence, retry, http, exit) {number, #name, sentence, retry, http, exit},
#include "proto/base/rc.def"
#undef X
};

static const struct rc_row *
rc_row(ef_rc rc)
{
    static const struct rc_row unknown = {1, "EF_UNKNOWN", "unknown error", false, 500, 1};

    for (size_t i = 0; i < EF_COUNT_OF(rc_rows); i++) {
        if (rc_rows[i].rc == rc)
            return &rc_rows[i];
    }
    return &unknown;
}

const char *
ef_rc_name(ef_rc rc)
{
    return rc_row(rc)->name;
}

const char *
ef_rc_sentence(ef_rc rc)
{
    return rc_row(rc)->sentence;
}

bool
ef_rc_retry(ef_rc rc)
{
    return rc_row(rc)->retry;
}

int
ef_rc_http(ef_rc rc)
{
    return rc_row(rc)->http;
}

int
ef_rc_exit(ef_rc rc)
{
    return rc_row(rc)->exit_code;
}

ef_rc(ef_err_set)(struct ef_err *err, ef_rc rc, const char *fmt, ...)
{
    va_list args;

    if (err == NULL)
        return rc;
    err->rc = rc;
    va_start(args, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, args);
    va_end(args);
    return rc;
}

void
ef_err_prefix(struct ef_err *err, const char *fmt, ...)
{
    char text[EF_ERR_TEXT_MAX];
    va_list args;
    size_t len, old_len;

    if (err == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text) - 2, fmt, args);
    va_end(args);
    len = strlen(text);
    text[len++] = ':';
    text[len++] = ' ';
    old_len = strlen(err->msg);
    if (old_len > sizeof(err->msg) - 1 - len)
        old_len = sizeof(err->msg) - 1 - len;
    memmove(err->msg + len, err->msg, old_len);
    memcpy(err->msg, text, len);
    err->msg[len + old_len] = '\0';
}

ef_rc(ef_err_errno)(struct ef_err *err, const char *fmt, ...)
{
    int number = errno;
    char text[EF_ERR_TEXT_MAX - 64];
    char reason[64];
    va_list args;
    ef_rc rc = EF_EIO;

    if (number == ENOSPC || number == EDQUOT)
        rc = EF_ENOSPC;
    else if (number == ENOMEM)
        rc = EF_ENOMEM;
    else if (number == ENOENT)
        rc = EF_ENOTFOUND;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return ef_err_set(err, rc, "%s: %s", text, strerror_r(number, reason, sizeof(reason)));
}

void
ef_assert_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "everflame: internal error: '%s' does not hold at %s:%d; please report this\n",
            expr, file, line);
    abort();
}
