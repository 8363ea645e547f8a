/* The stats page: what a process's memory is like, in a file that others of the same user may read, without the program's help.
 *
 * Where: $PYALLOC_SHARED_FOLDER, else /dev/shm, and in it pyalloc-<uid>/<pid namespace's inode>-<pid>-<start time>. The folder has mode 0700, the
 * file 0600. It appears complete, and its size never changes. The owner holds flock(LOCK_EX) on it: whoever gets a lock knows that the
 * owner is gone and the file a leftover.
 *
 * What: the header; a description in JSON of every table, {"tables": [{"name", "offset", "stride", "capacity", "fields": [{"name", "type",
 * "offset", "bytes", "kind", "unit", "help"}...]}...]}, types int64, stat (pyalloc_stat for each kind of block), text and cells; the tables.
 * A reader needs no more than the header's version and that description, so a library with more figures is no other version. The table
 * `process` has one record, and says how many of each other table are in use. A number that is not known is PYALLOC_PAGE_UNKNOWN.
 *
 * Reading: `sequence` is odd while the tables are being written. Read it, the tables, and it again: if both are the same even number the
 * copy is of one moment. The owner writes 10 times a second at most, so a few tries suffice. One that was killed while it wrote leaves the
 * number odd for ever: the lock says so.
 */
#pragma once
#include "pyalloc/pyalloc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PYALLOC_PAGE_MAGIC "PYALLOC" /* with its final 0 */
#define PYALLOC_PAGE_VERSION 1       /* of the header and the description's form */
#define PYALLOC_PAGE_UNKNOWN INT64_MIN
#define PYALLOC_PAGE_CELL_COUNT 128
#define PYALLOC_PAGE_TAGS 16
#define PYALLOC_PAGE_EVENTS 32

typedef struct pyalloc_page_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t page_bytes; /* the file's size */
  uint64_t sequence;
  uint32_t layout_offset, layout_bytes; /* the description; written once */
  uint32_t tables_offset, tables_bytes;
} pyalloc_page_header;

#define PYALLOC_PAGE_NUMBER(name, kind, unit, help) int64_t name;
#define PYALLOC_PAGE_STAT(name, unit, help) pyalloc_stat name[PYALLOC_KINDS];
#define PYALLOC_PAGE_TEXT(name, bytes, help) char name[bytes];
#define PYALLOC_PAGE_CELLS(name, count, help) uint8_t name[count];
typedef struct pyalloc_page_process {
#define PYALLOC_PAGE_OF_PROCESS
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_PROCESS
} pyalloc_page_process;
typedef struct pyalloc_page_device {
#define PYALLOC_PAGE_OF_DEVICE
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_DEVICE
} pyalloc_page_device;
typedef struct pyalloc_page_pool {
#define PYALLOC_PAGE_OF_POOL
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_POOL
} pyalloc_page_pool;
typedef struct pyalloc_page_tag {
#define PYALLOC_PAGE_OF_TAG
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_TAG
} pyalloc_page_tag;
typedef struct pyalloc_page_event {
#define PYALLOC_PAGE_OF_EVENT
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_EVENT
} pyalloc_page_event;
#undef PYALLOC_PAGE_NUMBER
#undef PYALLOC_PAGE_STAT
#undef PYALLOC_PAGE_TEXT
#undef PYALLOC_PAGE_CELLS

#ifdef __cplusplus
}
#endif
