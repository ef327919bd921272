/*
 * Decides how numbers and words are read from texts of others, by the byte and without a locale.
 * Must not know what they mean. Any thread.
 */
#include "proto/base/text.h"

#include <string.h>

/* Value of a digit, 16 for anything else. */
static unsigned
digit_of(char digit)
{
    if (digit >= '0' && digit <= '9')
        return (unsigned)(digit - '0');
    if (digit >= 'a' && digit <= 'f')
        return (unsigned)(digit - 'a') + 10;
    if (digit >= 'A' && digit <= 'F')
        return (unsigned)(digit - 'A') + 10;
    return 16;
}

bool
ef_u64_read(const char **at, unsigned base, uint64_t *ret)
{
    const char *next = *at;
    uint64_t number = 0;

    for (; digit_of(*next) < base; next++) {
        if (__builtin_mul_overflow(number, base, &number) ||
            __builtin_add_overflow(number, digit_of(*next), &number))
            return false;
    }
    if (next == *at)
        return false;
    *at = next;
    *ret = number;
    return true;
}

const char *
ef_word_at(const char *line, unsigned n)
{
    line += strspn(line, " \t");
    while (n-- > 0) {
        line += strcspn(line, " \t\n");
        line += strspn(line, " \t");
    }
    return line;
}

void
ef_hex_write(char *text, const uint8_t *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < len; i++) {
        *text++ = digits[data[i] >> 4];
        *text++ = digits[data[i] & 15];
    }
    *text = '\0';
}

bool
ef_hex_read(const char *text, uint8_t *ret, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned high = digit_of(text[2 * i]);
        unsigned low = high < 16 ? digit_of(text[2 * i + 1]) : 16; /* a NUL may end the text */
        if (low > 15)
            return false;
        ret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}
