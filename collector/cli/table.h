/*
 * A table for people: columns as wide as their widest cell, numbers to the right, names cut in the
 * middle when the terminal is too narrow.
 *
 * Invariants: cells are added row by row, each row whole; text is cleaned when it is added. A
 * memory failure sets a flag that the printed buffer takes over. One thread.
 */
#ifndef COLLECTOR_CLI_TABLE_H
#define COLLECTOR_CLI_TABLE_H

#include "collector/cli/cli.h"

#define EF_CLI_TABLE_COLUMNS_MAX 16

enum ef_cli_cut {
    EF_CLI_CUT_NEVER,  /* false */
    EF_CLI_CUT_MIDDLE, /* true: names differ at both ends */
    EF_CLI_CUT_START   /* places: the end of a path says most */
};

struct ef_cli_column {
    const char *title;
    bool right; /* numbers */
    enum ef_cli_cut flexible;
};

struct ef_cli_table {
    const struct ef_cli_column *columns; /* borrowed */
    size_t column_count;
    size_t cell_count;
    size_t widths[EF_CLI_TABLE_COLUMNS_MAX];
    struct ef_buf cells; /* NUL-terminated texts, one after the other */
};

void ef_cli_table_init(struct ef_cli_table *table, const struct ef_cli_column *columns,
                       size_t column_count);
void ef_cli_table_fini(struct ef_cli_table *table);
void ef_cli_table_add(struct ef_cli_table *table, const char *text);
void ef_cli_table_addf(struct ef_cli_table *table, const char *fmt, ...) EF_PRINTF(2, 3);
/* Columns it needs at least, flexible cells cut as far as they are ever cut. */
size_t ef_cli_table_width_least(const struct ef_cli_table *table);
/* Appends titles and rows. Nothing is cut when style->width is 0. */
void ef_cli_table_print(struct ef_cli_table *table, const struct ef_cli_style *style,
                        struct ef_buf *out);
/* Appends clean text, cut in the middle to at most `width` columns. */
void ef_cli_cut_middle(struct ef_buf *out, const char *text, size_t width, bool utf8);
/* The same, cut at its start. */
void ef_cli_cut_start(struct ef_buf *out, const char *text, size_t width, bool utf8);

#endif
