/*
 * Small pieces of text from outside: whole numbers, words of a line, hexadecimal. Nothing here
 * allocates; texts are borrowed. Any thread.
 */
#ifndef PROTO_BASE_TEXT_H
#define PROTO_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Reads the digits at *at and moves *at behind them. No sign, blank or prefix is taken; what
 * follows is the caller's to check. False, and nothing changed, when there is no digit or the
 * number does not fit. `base` is 10 or 16.
 */
bool ef_u64_read(const char **at, unsigned base, uint64_t *ret);

/* The n-th word of a line, from 0; "" when there are fewer. Words end at blanks, tabs and \n. */
const char *ef_word_at(const char *line, unsigned n);

/* Writes 2 * len lower-case digits and a NUL. */
void ef_hex_write(char *text, const uint8_t *data, size_t len);
/* Reads exactly 2 * len digits of either case. False, and `ret` undefined, when there are fewer.
 * Not for secrets: the time depends on the digits. */
bool ef_hex_read(const char *text, uint8_t *ret, size_t len);

#endif
