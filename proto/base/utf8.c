/*
 * Decides which bytes count as text. Any thread.
 */
#include "proto/base/utf8.h"

#include <stdint.h>

bool
ef_utf8_valid(const char *text, size_t len)
{
    const uint8_t *at = (const uint8_t *)text;
    const uint8_t *end = len > 0 ? at + len : at;

    while (at < end) {
        uint32_t point;
        size_t more;
        if (*at < 0x80) {
            if (*at == 0)
                return false;
            at++;
            continue;
        }
        if (*at >= 0xc2 && *at <= 0xdf)
            more = 1, point = *at & 0x1f;
        else if (*at >= 0xe0 && *at <= 0xef)
            more = 2, point = *at & 0x0f;
        else if (*at >= 0xf0 && *at <= 0xf4)
            more = 3, point = *at & 0x07;
        else
            return false;
        if ((size_t)(end - at) <= more)
            return false;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xc0) != 0x80)
                return false;
            point = point << 6 | (at[i] & 0x3f);
        }
        if ((more == 2 && point < 0x800) || (more == 3 && (point < 0x10000 || point > 0x10ffff)) ||
            (point >= 0xd800 && point <= 0xdfff))
            return false;
        at += more + 1;
    }
    return true;
}

bool
ef_name_valid(const char *text, size_t len, size_t len_max)
{
    if (len == 0 || len > len_max || !ef_utf8_valid(text, len))
        return false;
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    }
    return true;
}
