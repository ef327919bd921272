/*
 * Decides how times are read and written. The only file that asks the clock. Any thread.
 */
#include "proto/base/time.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/limit.h"
#include "proto/base/text.h"

static int64_t
clock_ns(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * EF_NS_PER_S + now.tv_nsec;
}

ef_wall_ns
ef_wall_now(void)
{
    return (ef_wall_ns){clock_ns(CLOCK_REALTIME)};
}

ef_mono_ns
ef_mono_now(void)
{
    return (ef_mono_ns){clock_ns(CLOCK_MONOTONIC)};
}

int64_t
ef_bucket_start(int64_t at_ns, int64_t span_ns)
{
    int64_t rest = at_ns % span_ns;

    if (rest < 0)
        rest += span_ns;
    return at_ns - rest;
}

static const struct {
    const char *suffix; /* Longer ones first where one is the start of another. */
    int64_t ns;
} span_units[] = {
    {"ms", EF_NS_PER_MS},       {"us", EF_NS_PER_US},           {"ns", 1},
    {"s", EF_NS_PER_S},         {"m", 60 * EF_NS_PER_S},        {"h", 3600 * EF_NS_PER_S},
    {"d", 86400 * EF_NS_PER_S}, {"w", 7 * 86400 * EF_NS_PER_S},
};

ef_rc
ef_span_parse(const char *text, ef_span_ns *ret, struct ef_err *err)
{
    const char *at = text;
    int64_t total = 0;

    if (*at == '\0')
        return ef_err_set(err, EF_EINVAL,
                          "an empty text is not a length of time; write for example 90s or 15m");
    while (*at != '\0') {
        const char *end = at;
        int64_t unit = 0, part;
        uint64_t number;

        if (!ef_u64_read(&end, 10, &number) || number > INT64_MAX)
            goto bad;
        for (size_t i = 0; i < EF_COUNT_OF(span_units) && unit == 0; i++) {
            size_t len = strlen(span_units[i].suffix);
            if (strncmp(end, span_units[i].suffix, len) == 0 && !isalpha((unsigned char)end[len])) {
                unit = span_units[i].ns;
                end += len;
            }
        }
        if (unit == 0 && *end == '\0' && at == text)
            unit = EF_NS_PER_MS;
        if (unit == 0 || !ef_mul_i64((int64_t)number, unit, &part) ||
            !ef_add_i64(total, part, &total))
            goto bad;
        at = end;
    }
    ret->ns = total;
    return EF_OK;
bad:
    return ef_err_set(err, EF_EINVAL,
                      "'%.64s' is not a length of time; write for example 90s, 15m or 250ms", text);
}

/* Reads exactly `digits` decimal digits. */
static bool
read_digits(const char **at, int digits, int *ret)
{
    int value = 0;

    for (int i = 0; i < digits; i++) {
        if (!isdigit((unsigned char)(*at)[i]))
            return false;
        value = value * 10 + ((*at)[i] - '0');
    }
    *at += digits;
    *ret = value;
    return true;
}

static bool
read_fraction(const char **at, int64_t *ret_ns)
{
    int64_t unit = EF_NS_PER_S / 10;
    int digits = 0;

    for (; isdigit((unsigned char)**at); (*at)++, digits++) {
        *ret_ns += (**at - '0') * unit;
        unit /= 10;
    }
    return digits > 0;
}

static bool
parse_rfc3339(const char *at, int64_t *ret_ns)
{
    struct tm tm = {0};
    int year, month, offset_hours = 0, offset_minutes = 0, sign = 0;
    int64_t fraction_ns = 0, seconds;

    if (!read_digits(&at, 4, &year) || *at++ != '-' || !read_digits(&at, 2, &month) ||
        *at++ != '-' || !read_digits(&at, 2, &tm.tm_mday) ||
        (*at != 'T' && *at != 't' && *at != ' '))
        return false;
    at++;
    if (!read_digits(&at, 2, &tm.tm_hour) || *at++ != ':' || !read_digits(&at, 2, &tm.tm_min))
        return false;
    if (*at == ':') {
        at++;
        if (!read_digits(&at, 2, &tm.tm_sec))
            return false;
    }
    if (*at == '.') {
        at++;
        if (!read_fraction(&at, &fraction_ns))
            return false;
    }
    if (*at == 'Z' || *at == 'z') {
        at++;
    } else if (*at == '+' || *at == '-') {
        sign = *at++ == '+' ? 1 : -1;
        if (!read_digits(&at, 2, &offset_hours) || *at++ != ':' ||
            !read_digits(&at, 2, &offset_minutes))
            return false;
    }
    if (*at != '\0' || year < 1970 || year > 2200 || month < 1 || month > 12 || tm.tm_mday < 1 ||
        tm.tm_mday > 31 || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60 ||
        offset_hours > 23 || offset_minutes > 59)
        return false;
    tm.tm_year = year - 1900;
    tm.tm_mon = month - 1;
    seconds = timegm(&tm) - (int64_t)sign * (offset_hours * 3600 + offset_minutes * 60);
    *ret_ns = seconds * EF_NS_PER_S + fraction_ns;
    return tm.tm_mon == month - 1; /* timegm turns the 31st of a short month into the next one. */
}

static bool
parse_unix(const char *text, int64_t *ret_ns)
{
    const char *at = text;
    int64_t fraction_ns = 0;
    uint64_t number;
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 14)
        return false;
    number = strtoull(text, NULL, 10);
    at += digits;
    if (digits >= 12) {
        *ret_ns = (int64_t)number * EF_NS_PER_MS;
        return *at == '\0';
    }
    if (*at == '.') {
        at++;
        if (!read_fraction(&at, &fraction_ns))
            return false;
    }
    if (*at != '\0' || number > INT64_MAX / EF_NS_PER_S - 1)
        return false;
    *ret_ns = (int64_t)number * EF_NS_PER_S + fraction_ns;
    return true;
}

ef_rc
ef_wall_parse(const char *text, ef_wall_ns now, ef_wall_ns *ret, struct ef_err *err)
{
    int64_t ns;

    if (strncmp(text, "now", 3) == 0) {
        ef_span_ns span = {0};
        if (text[3] == '\0') {
            *ret = now;
            return EF_OK;
        }
        if ((text[3] == '-' || text[3] == '+') && isdigit((unsigned char)text[4]) &&
            ef_span_parse(text + 4, &span, NULL) == EF_OK &&
            ef_add_i64(now.ns, text[3] == '-' ? -span.ns : span.ns, &ns)) {
            ret->ns = ns;
            return EF_OK;
        }
    } else if (parse_rfc3339(text, &ns) || parse_unix(text, &ns)) {
        ret->ns = ns;
        return EF_OK;
    }
    return ef_err_set(err, EF_EINVAL,
                      "'%.64s' is not a time; write now-15m, 2026-12-01T03:12:00Z, or Unix seconds "
                      "or milliseconds",
                      text);
}

const char *
ef_wall_format(ef_wall_ns at, char *buf, size_t len)
{
    int64_t seconds = ef_bucket_start(at.ns, EF_NS_PER_S) / EF_NS_PER_S;
    int ms = (int)((at.ns - seconds * EF_NS_PER_S) / EF_NS_PER_MS);
    time_t t = (time_t)seconds;
    struct tm tm;
    size_t used;

    if (gmtime_r(&t, &tm) == NULL) {
        snprintf(buf, len, "%" PRId64 "ns", at.ns);
        return buf;
    }
    used = strftime(buf, len, "%Y-%m-%dT%H:%M:%S", &tm);
    if (ms != 0)
        used += (size_t)snprintf(buf + used, len - used, ".%03d", ms);
    snprintf(buf + used, len - used, "Z");
    return buf;
}

const char *
ef_span_format(ef_span_ns span, char *buf, size_t len)
{
    static const struct {
        const char *suffix;
        int64_t ns;
    } units[] = {{"d", 86400 * EF_NS_PER_S},
                 {"h", 3600 * EF_NS_PER_S},
                 {"m", 60 * EF_NS_PER_S},
                 {"s", EF_NS_PER_S},
                 {"ms", EF_NS_PER_MS},
                 {"us", EF_NS_PER_US},
                 {"ns", 1}};
    size_t used = 0;
    int64_t rest = span.ns < 0 ? 0 : span.ns;
    int parts = 0;

    for (size_t i = 0; i < EF_COUNT_OF(units) && parts < 2; i++) {
        if (rest < units[i].ns)
            continue;
        used += (size_t)snprintf(buf + used, len - used, "%" PRId64 "%s", rest / units[i].ns,
                                 units[i].suffix);
        rest %= units[i].ns;
        parts++;
    }
    if (parts == 0)
        snprintf(buf, len, "0s");
    return buf;
}
