/*
 * Decides the form of a log line. Any thread.
 */
#include "proto/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/buf.h"
#include "proto/base/time.h"

static const struct {
    const char *id;
    enum ef_log_level level;
    const char *sentence;
} event_rows[] = {
#define X(id, level, sentence) {#id, EF_LOG_##level, sentence},
#include "proto/base/events.def"
#undef X
};

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static enum ef_log_level level_max = EF_LOG_INFO;

void
ef_log_set_level(enum ef_log_level level)
{
    level_max = level;
}

void
ef_log_write(enum ef_log_event event, const char *fmt, ...)
{
    char line[1200], when[40];
    size_t used;
    va_list args;
    int len;

    if (event >= EF_EVENT_COUNT || event_rows[event].level > level_max)
        return;
    used = (size_t)snprintf(line, sizeof(line),
                            "%s %s %s: ", ef_wall_format(ef_wall_now(), when, sizeof(when)),
                            level_names[event_rows[event].level], event_rows[event].id);
    va_start(args, fmt);
    len = vsnprintf(line + used, sizeof(line) - used - 1, fmt, args);
    va_end(args);
    if (len > 0)
        used += (size_t)len < sizeof(line) - used - 2 ? (size_t)len : sizeof(line) - used - 2;
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[used++] = '\n';
    EF_IGNORE(write(STDERR_FILENO, line, used) < 0,
              "there is nowhere to report a failing stderr to");
}

void
ef_log_reference(struct ef_buf *out)
{
    ef_buf_append_str(out, "| Event | Level | Meaning |\n| --- | --- | --- |\n");
    for (size_t i = 0; i < EF_COUNT_OF(event_rows); i++)
        ef_buf_printf(out, "| `%s` | %s | %s |\n", event_rows[i].id,
                      level_names[event_rows[i].level], event_rows[i].sentence);
}
