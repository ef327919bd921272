/*
 * What `top`, `timeline` and `query` have in common: checking the selector, and the line that says
 * what an answer is about.
 */
#ifndef COLLECTOR_CLI_SELECTION_H
#define COLLECTOR_CLI_SELECTION_H

#include "collector/cli/request.h"

/* Worker, type and range are there and make sense; otherwise EF_CLI_USAGE, said. */
int ef_cli_check_selector(const struct ef_cli *cli);
/* "shop, versions v41, v42, cpu, <from> to <to> (1h)". from and to stand in `answer`. */
void ef_cli_selection_line(const struct ef_cli *cli, const json_t *answer, const char *from,
                           const char *to, struct ef_buf *out);
/* "note: ..." for each of the answer's notes. */
void ef_cli_notes(const struct ef_cli *cli, const json_t *answer, struct ef_buf *out);

#endif
