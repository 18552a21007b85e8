/* A place of a server whose client goes, and which another one gets: part(), vacate() and add() of
 * src/message/server/clients.cpp, visit() of server.cpp, ReplyQueue.
 *
 *   Former   posts frames and bytes, whatever becomes of its connection
 *   Server   takes messages, hands each to Worker, ends the former client's connection at any time,
 *            and gives its place to the new one
 *   Newcomer calls, one request after the other
 *   Worker   answers requests any time later, also those of who has left
 *   Devices  execute what the two have posted
 *
 * Modelled: the worst memory there is: the newcomer's ring lies where the former one's lay, and both
 * set the same byte. A WRITE that is executed has looked whether its queue pair is there some time
 * before its bytes arrive. Stores to the byte are not fenced by anything (by store, none are), so a
 * byte of the former client comes any time. Frames bear a secret of their connection.
 * Left out: the order of frame and byte (mailbox.pml), rings of more than one frame, sleeping.
 *
 * Settings: items (requests of the newcomer).
 */
#include "common.pml"

#define FORMER 1
#define NEWCOMER 2

local byte items;
hidden byte message_is_its, answer_is_its;

mtype = { FRAME, BYTE };
chan posted[3] = [6] of { mtype };        /* by whom, and not executed yet */
bit connected[3];                         /* its queue pair is there */
bit copies[3];                            /* a WRITE of it is being executed */
byte frame;                               /* whose frame lies in the ring; 0: none's */
bit box;
byte client;                              /* whose the place is; 0: nobody's */
byte generation;
chan deferred = [4] of { byte, byte };    /* generation and client of requests without an answer */
chan given = [4] of { byte, byte };       /* the same, with an answer */
byte answered;                            /* of the newcomer's requests */

proctype Former() {
    byte sent;
    do
    :: sent < 2 -> posted[FORMER]!FRAME; posted[FORMER]!BYTE; sent++
    :: break
    od
}

proctype Newcomer() {
    byte sent;
    client == NEWCOMER;
    do
    :: sent == items -> break
    :: sent < items ->
        sent++;
        posted[NEWCOMER]!FRAME;
        posted[NEWCOMER]!BYTE;
        answered == sent
    od
}

proctype Device(byte whose) {
    mtype kind;
end:
    do
    :: atomic {
        posted[whose]?kind ->
        if
        :: kind == FRAME && connected[whose] -> copies[whose] = 1
        :: else
        fi
       };
       if
       :: kind == FRAME && copies[whose] -> atomic { frame = whose; copies[whose] = 0 }
       :: kind == BYTE -> box = 1
       :: else
       fi;
       kind = 0
    od
}

proctype Worker() {
    byte its_generation, its_client;
end:
    do
    :: atomic {
        deferred?its_generation, its_client -> given!its_generation, its_client;
        its_generation = 0;
        its_client = 0
       }
    od
}

/* What the byte says is asked of the ring. */
inline visit() {
    box = 0;
    if
    :: client != 0 && (frame == client || wrong(byte_trusted)) ->
        message_is_its = frame == client;
        assert(message_is_its);
        frame = 0;
        deferred!generation, client
    :: else
    fi
}

inline part() {
    if
    :: wrong(not_fenced)
    :: else -> connected[FORMER] = 0; copies[FORMER] == 0
    fi;
    client = 0;
    if
    :: wrong(generation_kept)
    :: else -> generation++
    fi
}

proctype Server() {
    byte its_generation, its_client;
    do
    :: atomic { box == 1 -> visit() }
    :: client == FORMER -> part()
    :: atomic { /* the ring of a new connection is empty */
        client == 0 ->
        frame = 0;
        connected[NEWCOMER] = 1;
        client = NEWCOMER
       }
    :: atomic {
        given?its_generation, its_client ->
        if
        :: its_generation == generation && client != 0 ->
            answer_is_its = its_client == client;
            assert(answer_is_its);
            if
            :: client == NEWCOMER -> answered++
            :: else
            fi
        :: else
        fi;
        its_generation = 0;
        its_client = 0
       }
    :: answered == items -> break
    od
}

init {
    start();
    c_code { now.items = setting("MODEL_items", 2); }
    atomic {
        client = FORMER;
        connected[FORMER] = 1;
        run Former();
        run Newcomer();
        run Server();
        run Worker();
        run Device(FORMER);
        run Device(NEWCOMER)
    }
}
