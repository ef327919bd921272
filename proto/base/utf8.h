/*
 * Checks on text from outside.
 */
#ifndef PROTO_BASE_UTF8_H
#define PROTO_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* True for valid UTF-8 (no surrogates, no overlong forms) without NUL bytes. Borrows. */
bool ef_utf8_valid(const char *text, size_t len);
/* True for a name of an account, worker, version …: valid UTF-8, 1 to len_max bytes, no control
 * characters. */
bool ef_name_valid(const char *text, size_t len, size_t len_max);

#endif
