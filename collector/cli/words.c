/*
 * Decides how numbers, times and names look to people, and what an error looks like. Knows nothing
 * of commands and servers. Main thread.
 */
#include "collector/cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX 4096 /* of a message; longer ones are cut */

/* One code point; bad bytes, control characters and direction marks give '?'. */
static uint32_t
next_character(const unsigned char **at)
{
    const unsigned char *p = *at;
    int more = p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : p[0] >= 0xc2 ? 1 : 0;
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000}; /* overlong forms are refused */
    uint32_t code = more == 0 ? p[0] : p[0] & (0x3fu >> more);

    *at = p + 1;
    if ((p[0] >= 0x80 && more == 0) || p[0] > 0xf4 || p[0] < 0x20 || p[0] == 0x7f)
        return '?';
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return '?';
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return '?';
    *at = p + 1 + more;
    if ((code >= 0x80 && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
        (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
        return '?';
    return code;
}

void
ef_cli_clean(struct ef_buf *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    while (*at != '\0') {
        const unsigned char *start = at;
        if (next_character(&at) == '?')
            ef_buf_put_u8(out, '?');
        else
            ef_buf_append(out, start, (size_t)(at - start));
    }
}

/* Ranges of East Asian wide characters and emoji; a coarse cut of Unicode 15's EastAsianWidth. */
static size_t
character_width(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } wide[] = {{0x1100, 0x115f},   {0x2e80, 0xa4cf},  {0xac00, 0xd7a3}, {0xf900, 0xfaff},
                {0xfe30, 0xfe6f},   {0xff00, 0xff60},  {0xffe0, 0xffe6}, {0x1f300, 0x1f64f},
                {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

    if ((code >= 0x300 && code < 0x370) || (code >= 0x200b && code <= 0x200d))
        return 0;
    for (size_t i = 0; i < EF_COUNT_OF(wide); i++) {
        if (code >= wide[i].first && code <= wide[i].last)
            return 2;
    }
    return 1;
}

size_t
ef_cli_text_width(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t width = 0;

    while (*at != '\0')
        width += character_width(next_character(&at));
    return width;
}

/* Bytes of the character or colour escape at `at`, and its columns. */
static size_t
measure(const unsigned char *at, size_t left, size_t *ret_columns)
{
    const unsigned char *next = at;
    size_t bytes = 0;

    *ret_columns = 0;
    if (*at == 0x1b) {
        while (bytes < left && at[bytes] != 'm')
            bytes++;
        return bytes < left ? bytes + 1 : left;
    }
    *ret_columns = character_width(next_character(&next));
    return (size_t)(next - at);
}

/* Appends one line, broken at its last blank that fits; a word longer than the line is left whole.
 */
static void
wrap_line(struct ef_buf *out, const char *line, size_t len, size_t width, size_t indent)
{
    size_t column = 0, blank = 0, begin = 0, columns;

    for (size_t at = 0; at < len;) {
        size_t bytes = measure((const unsigned char *)line + at, len - at, &columns);
        if (line[at] == ' ' && column > 0)
            blank = at;
        column += columns;
        at += bytes;
        if (column <= width || blank <= begin)
            continue;
        ef_buf_append(out, line + begin, blank - begin);
        ef_buf_printf(out, "\n%*s", (int)indent, "");
        begin = at = blank + 1;
        column = indent;
    }
    ef_buf_append(out, line + begin, len - begin);
    ef_buf_put_u8(out, '\n');
}

void
ef_cli_wrap(struct ef_buf *out, size_t start, const struct ef_cli_style *style, size_t indent)
{
    size_t len = out->len > start ? out->len - start : 0;
    char *text, *line;

    if (style->width == 0 || len == 0 || !ef_buf_put_u8(out, '\0'))
        return;
    out->len--;
    text = strdup((const char *)out->data + start); /* without memory lines stay long */
    if (text == NULL)
        return;
    out->len = start;
    for (line = text; *line != '\0';) {
        size_t line_len = strcspn(line, "\n");
        wrap_line(out, line, line_len, style->width, indent);
        line += line_len + (line[line_len] == '\n');
    }
    free(text);
}

static void __attribute__((format(printf, 1, 0)))
say(const char *fmt, va_list args, const char *hint)
{
    char line[LINE_BYTES_MAX];
    struct ef_buf out;

    vsnprintf(line, sizeof(line), fmt, args);
    ef_buf_init(&out, 2 * sizeof(line));
    ef_buf_append_str(&out, "everflame: ");
    ef_cli_clean(&out, line);
    ef_buf_append_str(&out, hint);
    ef_buf_append_str(&out, "\n");
    if (out.len > 0 && write(STDERR_FILENO, out.data, out.len) < 0) {
        /* Nobody is left to tell. */
    }
    ef_buf_fini(&out);
}

void
ef_cli_say(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say(fmt, args, "");
    va_end(args);
}

int
ef_cli_say_usage(const struct ef_cli_command *command, const char *fmt, ...)
{
    char hint[96];
    va_list args;

    snprintf(hint, sizeof(hint), " (see 'everflame help %s')", command->words);
    va_start(args, fmt);
    say(fmt, args, hint);
    va_end(args);
    return EF_CLI_USAGE;
}

int
ef_cli_say_err(const struct ef_err *err)
{
    ef_cli_say("%s", err->msg);
    return ef_rc_exit(err->rc);
}

const char *
ef_cli_count_text(double count, char *buf, size_t len)
{
    char digits[32];
    size_t digit_count, used = 0;

    if (!isfinite(count) || fabs(count) >= 1e18) {
        snprintf(buf, len, isfinite(count) ? "%.3g" : "-", count);
        return buf;
    }
    snprintf(digits, sizeof(digits), "%.0f", fabs(count));
    digit_count = strlen(digits);
    if (count <= -0.5 && used + 1 < len)
        buf[used++] = '-';
    for (size_t i = 0; i < digit_count && used + 2 < len; i++) {
        if (i > 0 && (digit_count - i) % 3 == 0)
            buf[used++] = ',';
        buf[used++] = digits[i];
    }
    buf[used] = '\0';
    return buf;
}

const char *
ef_cli_bytes_text(double bytes, char *buf, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    if (!isfinite(bytes)) {
        snprintf(buf, len, "-");
        return buf;
    }
    while (fabs(bytes) >= 1024 && unit + 1 < EF_COUNT_OF(units)) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buf, len, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return buf;
}

const char *
ef_cli_ns_text(double ns, char *buf, size_t len)
{
    static const struct {
        double ns;
        const char *name;
    } units[] = {{86400e9, "d"}, {3600e9, "h"}, {60e9, "min"},
                 {1e9, "s"},     {1e6, "ms"},   {1e3, "us"}};

    if (!isfinite(ns)) {
        snprintf(buf, len, "-");
        return buf;
    }
    for (size_t i = 0; i < EF_COUNT_OF(units); i++) {
        /* Two of a larger unit before it is used: "90 s" says more than "1.5 min". */
        double from = units[i].ns * (units[i].ns > 1e9 ? 2 : 1);
        if (fabs(ns) >= from) {
            snprintf(buf, len, "%.1f %s", ns / units[i].ns, units[i].name);
            return buf;
        }
    }
    snprintf(buf, len, "%.0f ns", ns);
    return buf;
}

const char *
ef_cli_percent_text(double ratio, char *buf, size_t len)
{
    if (isfinite(ratio))
        snprintf(buf, len, "%.2f %%", ratio * 100);
    else
        snprintf(buf, len, "-");
    return buf;
}

const char *
ef_cli_value_text(double value, const char *unit, char *buf, size_t len)
{
    char count[64];

    if (strcmp(unit, "nanoseconds") == 0)
        return ef_cli_ns_text(value, buf, len);
    if (strcmp(unit, "bytes") == 0)
        return ef_cli_bytes_text(value, buf, len);
    snprintf(buf, len, "%s %.24s", ef_cli_count_text(value, count, sizeof(count)), unit);
    return buf;
}

const char *
ef_cli_share_text(double share, double low, double high, char *buf, size_t len)
{
    char up[32] = "+?", down[32] = "-?";

    if (!isfinite(share)) {
        snprintf(buf, len, "-");
        return buf;
    }
    if (isfinite(low) && isfinite(high)) {
        snprintf(up, sizeof(up), "+%.2f", fmax(high - share, 0) * 100);
        snprintf(down, sizeof(down), "-%.2f", fmax(share - low, 0) * 100);
    }
    snprintf(buf, len, "%6.2f %% %6s %6s", share * 100, up, down);
    return buf;
}

void
ef_cli_paint(struct ef_buf *out, const struct ef_cli_style *style, const char *escape)
{
    if (style->colour)
        ef_buf_append_str(out, escape);
}
