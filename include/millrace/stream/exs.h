/* Byte streams for C, in the manner of the Extended Sockets API (Open Group, ES-API), as work 003
 * uses it: operations return at once, and an event says when each is over. A face of socket.hpp,
 * which says what is not said here; docs/stream.md explains the protocol.
 *
 *     exs_qhandle_t queue = exs_qcreate(64);
 *     exs_shandle_t sock = exs_socket(SOCK_STREAM);
 *     if (exs_connect(sock, "127.0.0.1:7000", 1000, NULL, queue) != 0) puts(exs_last_error());
 *     ... (its event)
 *     exs_send(sock, bytes, length, 0, NULL, NULL, queue);
 *     exs_event_t event;
 *     while (exs_qdequeue(queue, &event, 1, -1) == 1) ...
 *
 * Functions answer -1 (or a null handle) where they fail, with errno, and exs_last_error() says more.
 * Handles are of this library; a handle that was closed must not be used. A queue, and the sockets
 * whose operations name it, are used by one thread at a time; progress is made in their calls alone.
 * What differs from ES-API: handles in place of descriptors, addresses as text, exs_connect has
 * a time to try for, and exs_mregister names no access.
 */
#ifndef MILLRACE_EXS_H
#define MILLRACE_EXS_H

#include <stddef.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXS_VERSION 1

typedef struct exs_socket_state* exs_shandle_t; /* a socket, connected or listening */
typedef struct exs_queue_state* exs_qhandle_t;  /* a queue of events */
typedef struct exs_memory_state* exs_mhandle_t; /* registered memory; NULL: plain memory */
typedef void* exs_ahandle_t;                    /* the program's name of an operation */

enum { EXS_EVT_ACCEPT = 1, EXS_EVT_CONNECT, EXS_EVT_SEND, EXS_EVT_RECV };
enum { EXS_MODE_DYNAMIC = 0, EXS_MODE_DIRECT, EXS_MODE_INDIRECT };

typedef struct exs_event {
    int type;
    /* 0; EMSGSIZE: the rest of a message is gone; ECANCELED; EPIPE: closed; ECONNRESET: the peer is
     * lost. */
    int error;
    exs_shandle_t socket; /* of the operation; it may be closed by now */
    exs_ahandle_t ahandle;
    size_t length;          /* bytes that were sent or received */
    int end_of_stream;      /* of EXS_EVT_RECV, with no bytes: the peer sends no more */
    exs_shandle_t accepted; /* of EXS_EVT_ACCEPT */
} exs_event_t;

/* Opens the device, so that it need not be done later. EINVAL: another version than EXS_VERSION. */
int exs_init(int version);
/* Of this thread's last function that failed; "" before. Valid until its next one. */
const char* exs_last_error(void);

/* Registers `length` bytes, which outlive the handle. The peer may write to all of them while a
 * socket that received into them is connected. EBUSY: an operation uses it. */
exs_mhandle_t exs_mregister(void* memory, size_t length);
int exs_mderegister(exs_mhandle_t memory);

/* A queue for `depth` operations whose events were not taken. EBUSY: there are such. */
exs_qhandle_t exs_qcreate(int depth);
int exs_qdelete(exs_qhandle_t queue);
/* Up to `count` events: how many; 0: none came for so many milliseconds (-1: waits for ever). */
int exs_qdequeue(exs_qhandle_t queue, exs_event_t* events, int count, int milliseconds);

/* SOCK_STREAM or SOCK_SEQPACKET. */
exs_shandle_t exs_socket(int type);
/* Before it is connected or listens; both ends need agree. */
int exs_setmode(exs_shandle_t sock, int mode);
/* Strict use, for sockets that it accepts as well: exs_send and exs_recv of plain memory (a null
 * exs_mhandle_t) fail with EINVAL, unless `on` is 0. Before it is connected or listens. */
int exs_setregisteredonly(exs_shandle_t sock, int on);
/* Where it listens: "HOST:PORT", "unix:PATH", "unix:@NAME". EISCONN: it is in use already. */
int exs_bind(exs_shandle_t sock, const char* address);
int exs_listen(exs_shandle_t sock);
/* Where a listening socket listens, with the port that was chosen. NULL: it does not. */
const char* exs_address(exs_shandle_t sock);

/* The event has the socket of the next peer. */
int exs_accept(exs_shandle_t sock, exs_ahandle_t ahandle, exs_qhandle_t queue);
/* Begins to connect, and tries for so many milliseconds (-1: for ever), also while nothing listens
 * there. Its event says when it is connected, or why not: ECONNREFUSED, ETIMEDOUT, EACCES, EPROTO …,
 * of which exs_last_error() says more after that exs_qdequeue. The name of a host is looked up
 * here. EALREADY: it is being connected. */
int exs_connect(exs_shandle_t sock, const char* address, int milliseconds, exs_ahandle_t ahandle,
                exs_qhandle_t queue);
/* The bytes stay as they are until the event. `flags`: 0 or MSG_MORE. EAGAIN: as many operations as
 * there may be. EPIPE, ECONNRESET, EINVAL: no bytes, where there are no messages. EFAULT: `bytes`
 * is null. */
int exs_send(exs_shandle_t sock, const void* bytes, size_t length, int flags, exs_mhandle_t memory,
             exs_ahandle_t ahandle, exs_qhandle_t queue);
/* The memory is the peer's until the event. `flags`: 0 or MSG_WAITALL, which says nothing where
 * there are messages. */
int exs_recv(exs_shandle_t sock, void* bytes, size_t length, int flags, exs_mhandle_t memory,
             exs_ahandle_t ahandle, exs_qhandle_t queue);
/* The receives, the accepts and the connect of that name end with ECANCELED, unless bytes come first. ENOENT: there
 * are none. */
int exs_cancel(exs_shandle_t sock, exs_ahandle_t ahandle);
/* `how`: SHUT_WR. Receiving goes on. */
int exs_shutdown(exs_shandle_t sock, int how);
/* Waits until the peer has everything, for so many milliseconds at most. What is outstanding ends.
 * The handle is gone, also where it fails (ETIMEDOUT: the peer may miss some of it). */
int exs_close(exs_shandle_t sock, int milliseconds);

#ifdef __cplusplus
}
#endif

#endif
