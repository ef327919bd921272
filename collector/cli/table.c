/*
 * Decides widths and where a name is cut. Knows nothing of what the cells mean. Main thread.
 */
#include "collector/cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GAP_COLUMNS 2         /* between two columns */
#define FLEXIBLE_WIDTH_MIN 12 /* a name cut shorter says nothing; chosen */

void
ef_cli_table_init(struct ef_cli_table *table, const struct ef_cli_column *columns,
                  size_t column_count)
{
    EF_ASSERT(column_count > 0);
    EF_ASSERT(column_count <= EF_CLI_TABLE_COLUMNS_MAX);
    *table = (struct ef_cli_table){.columns = columns, .column_count = column_count};
    ef_buf_init(&table->cells, EF_CLI_OUTPUT_BYTES_MAX);
    for (size_t i = 0; i < column_count; i++)
        table->widths[i] = ef_cli_text_width(columns[i].title);
}

void
ef_cli_table_fini(struct ef_cli_table *table)
{
    ef_buf_fini(&table->cells);
}

void
ef_cli_table_add(struct ef_cli_table *table, const char *text)
{
    size_t column = table->cell_count % table->column_count;
    size_t start = table->cells.len;
    size_t width;

    ef_cli_clean(&table->cells, text);
    if (!ef_buf_put_u8(&table->cells, '\0'))
        return;
    width = ef_cli_text_width((const char *)table->cells.data + start);
    if (width > table->widths[column])
        table->widths[column] = width;
    table->cell_count++;
}

void
ef_cli_table_addf(struct ef_cli_table *table, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    ef_cli_table_add(table, text);
}

/* Columns of the character that is `bytes` long. */
static size_t
one_width(const char *text, size_t bytes)
{
    char part[8] = "";

    memcpy(part, text, bytes);
    return ef_cli_text_width(part);
}

static bool
continues_character(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Where the longest start of at most `width` columns ends. */
static size_t
start_end(const char *text, size_t width)
{
    size_t at = 0, len = strlen(text);

    while (at < len) {
        size_t bytes = 1;
        while (bytes < 4 && continues_character(text[at + bytes]))
            bytes++;
        size_t columns = one_width(text + at, bytes);
        if (columns > width)
            break;
        width -= columns;
        at += bytes;
    }
    return at;
}

/* Where the longest end of at most `width` columns begins. */
static size_t
end_start(const char *text, size_t width)
{
    size_t at = strlen(text);

    while (at > 0) {
        size_t bytes = 1;
        while (bytes < 4 && bytes < at && continues_character(text[at - bytes]))
            bytes++;
        size_t columns = one_width(text + at - bytes, bytes);
        if (columns > width)
            break;
        width -= columns;
        at -= bytes;
    }
    return at;
}

void
ef_cli_cut_middle(struct ef_buf *out, const char *text, size_t width, bool utf8)
{
    const char *mark = utf8 ? "…" : "...";
    size_t mark_width = utf8 ? 1 : 3;
    size_t left;

    if (ef_cli_text_width(text) <= width || width <= mark_width) {
        ef_buf_append_str(out, text);
        return;
    }
    left = width - mark_width;
    ef_buf_append(out, text, start_end(text, left - left / 2));
    ef_buf_append_str(out, mark);
    ef_buf_append_str(out, text + end_start(text, left / 2));
}

void
ef_cli_cut_start(struct ef_buf *out, const char *text, size_t width, bool utf8)
{
    size_t mark_width = utf8 ? 1 : 3;

    if (ef_cli_text_width(text) <= width || width <= mark_width) {
        ef_buf_append_str(out, text);
        return;
    }
    ef_buf_append_str(out, utf8 ? "…" : "...");
    ef_buf_append_str(out, text + end_start(text, width - mark_width));
}

size_t
ef_cli_table_width_least(const struct ef_cli_table *table)
{
    size_t sum = GAP_COLUMNS * (table->column_count - 1);

    for (size_t i = 0; i < table->column_count; i++) {
        bool cut = table->columns[i].flexible && table->widths[i] > FLEXIBLE_WIDTH_MIN;
        sum += cut ? FLEXIBLE_WIDTH_MIN : table->widths[i];
    }
    return sum;
}

/* Takes columns from the widest flexible column until the row fits. */
static void
fit(struct ef_cli_table *table, size_t width)
{
    size_t sum = GAP_COLUMNS * (table->column_count - 1);

    for (size_t i = 0; i < table->column_count; i++)
        sum += table->widths[i];
    while (sum > width) {
        size_t widest = table->column_count;
        for (size_t i = 0; i < table->column_count; i++) {
            if (table->columns[i].flexible && table->widths[i] > FLEXIBLE_WIDTH_MIN &&
                (widest == table->column_count || table->widths[i] > table->widths[widest]))
                widest = i;
        }
        if (widest == table->column_count)
            return;
        table->widths[widest]--;
        sum--;
    }
}

static void
pad(struct ef_buf *out, size_t columns)
{
    for (size_t i = 0; i < columns; i++)
        ef_buf_put_u8(out, ' ');
}

/* Ends a row without the blanks of empty cells. */
static void
end_row(struct ef_buf *out)
{
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        out->len--;
    ef_buf_append_str(out, "\n");
}

static void
print_cell(const struct ef_cli_table *table, size_t column, const char *text, bool utf8,
           struct ef_buf *out)
{
    size_t width = table->widths[column];
    struct ef_buf cut;
    size_t used;

    ef_buf_init(&cut, EF_CLI_OUTPUT_BYTES_MAX);
    if (table->columns[column].flexible == EF_CLI_CUT_START)
        ef_cli_cut_start(&cut, text, width, utf8);
    else if (table->columns[column].flexible == EF_CLI_CUT_MIDDLE)
        ef_cli_cut_middle(&cut, text, width, utf8);
    else
        ef_buf_append_str(&cut, text);
    ef_buf_put_u8(&cut, '\0');
    if (!cut.failed) {
        used = ef_cli_text_width((const char *)cut.data);
        if (table->columns[column].right && used < width)
            pad(out, width - used);
        ef_buf_append(out, cut.data, cut.len - 1);
        if (column + 1 < table->column_count)
            pad(out,
                (used < width && !table->columns[column].right ? width - used : 0) + GAP_COLUMNS);
    }
    out->failed |= cut.failed;
    ef_buf_fini(&cut);
}

void
ef_cli_table_print(struct ef_cli_table *table, const struct ef_cli_style *style, struct ef_buf *out)
{
    const char *cell = (const char *)table->cells.data;
    size_t column_count = table->column_count;

    EF_ASSERT(column_count > 0); /* as in init */
    if (style->width > 0)
        fit(table, style->width);
    ef_cli_paint(out, style, EF_CLI_BOLD);
    for (size_t i = 0; i < column_count; i++)
        print_cell(table, i, table->columns[i].title, style->utf8, out);
    ef_cli_paint(out, style, EF_CLI_PLAIN);
    end_row(out);
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t column = i % column_count;
        print_cell(table, column, cell, style->utf8, out);
        if (column + 1 == column_count)
            end_row(out);
        cell += strlen(cell) + 1;
    }
    out->failed |= table->cells.failed;
}
