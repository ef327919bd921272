/*
 * Log lines on stderr, one event each: time, level, event id, text. Events are declared once in
 * events.def.
 *
 * Names from outside stand in single quotes in the text. Never profile contents, tokens or code at
 * info or above. Any thread; one write(2) per line, so lines of threads do not mix. Control
 * characters are replaced by '?'.
 */
#ifndef PROTO_BASE_LOG_H
#define PROTO_BASE_LOG_H

#include "proto/base/err.h"

enum ef_log_level { EF_LOG_ERROR, EF_LOG_WARN, EF_LOG_INFO, EF_LOG_DEBUG };

enum ef_log_event {
#define X(id, level, sentence) EF_EVENT_##id,
#include "proto/base/events.def"
#undef X
    EF_EVENT_COUNT
};

/* Lines above this level are not written. Default EF_LOG_INFO. Set once at start. */
void ef_log_set_level(enum ef_log_level level);
void ef_log_write(enum ef_log_event event, const char *fmt, ...) EF_PRINTF(2, 3);
/* Appends the Markdown table of events. */
struct ef_buf;
void ef_log_reference(struct ef_buf *out);

#define EF_LOG(id, ...) ef_log_write(EF_EVENT_##id, __VA_ARGS__)

#endif
