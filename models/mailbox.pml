/* A client's byte beside its ring, and the server that looks at the ring only where the byte is
 * set: src/message/server/mailboxes.hpp, and visit() of src/message/server/server.cpp.
 *
 * Modelled: stores that become visible late, in their order (a store buffer, or WRITEs of one queue
 * pair); a look that takes one message at most; the byte that stands while there are more; its
 * exchange before the look that finds none, and the server that sets it again if that one finds some;
 * looks at the ring of a client who is likely to write, whatever its byte says, which come at times
 * and are vain or not (Server::State::has_message_of_hot()).
 * Left out: what a frame is (whole or not there), sleeping, which does not ask the byte.
 *
 * Settings: items (messages that the client sends).
 */
#include "common.pml"

local byte items;

mtype = { FRAME, BYTE };
chan stores = [6] of { mtype }; /* of the client, on their way to the server's memory */
byte laid;                      /* frames that lie in the ring */
bit box;
byte taken;

proctype Client() {
    byte sent;
    do
    :: sent < items ->
        sent++;
        if
        :: wrong(byte_first) -> stores!BYTE; stores!FRAME
        :: else -> stores!FRAME; stores!BYTE
        fi
    :: sent == items -> break
    od
}

proctype Memory() {
    mtype kind;
end:
    do
    :: atomic {
        stores?kind ->
        if
        :: kind == FRAME -> laid++
        :: kind == BYTE -> box = 1
        fi;
        kind = 0
       }
    od
}

/* Exchanges the byte, then looks, and sets the byte again where there is a message. */
inline looks_once_more() {
    if
    :: wrong(ring_first) -> seen = laid; box = 0
    :: else -> box = 0; seen = laid
    fi;
    if
    :: seen > taken ->
        if
        :: wrong(no_reminder) -> skip
        :: else -> box = 1
        fi
    :: else
    fi
}

proctype Server() {
    byte seen;
    do
    :: taken == items -> break
    :: taken < items ->
        seen = taken;
        if
        :: seen = laid /* a look at a hot place */
        :: skip
        fi;
        if
        :: seen > taken
        :: else -> box == 1 /* the scan */
        fi;
        seen = laid;
        if
        :: seen > taken -> /* a message: visit(), and Mailboxes::served() */
            taken++;
            if
            :: laid > taken -> skip /* the byte stands */
            :: else -> looks_once_more()
            fi
        :: else -> looks_once_more() /* visit_otherwise() */
        fi
    od
}

init {
    start();
    c_code { now.items = setting("MODEL_items", 3); }
    atomic {
        run Client();
        run Memory();
        run Server()
    }
}
