/* One cell of latest values: include/millrace/flow/latest.hpp and src/flow/latest.cpp.
 *
 *   Writer     put n: the value to place n mod 4, then version n
 *   Memory     makes the writer's stores, or the WRITEs of its queue pair, visible in their order;
 *              the two words of one value in any
 *   Reader     reads the version, copies the place, reads the version again
 *
 * Modelled: a value of two words, a version that is torn while it lands, a writer that dies at any
 * moment, a version that flush() says again by a request, which lands whenever it likes (flush
 * does that where values are posted, too: there it lands in its turn).
 * Left out: other cells, versions that wrap, sleeping (wake_up.pml).
 *
 * Settings: puts; store=1: values are stored, not posted.
 */
#include "common.pml"

#define PLACES 4
#define AHEAD 2 /* most_ahead: a copy is whole while the version has gone on by no more */

local byte puts, store;
local byte places; /* of a value */

mtype = { FIRST, SECOND, VERSION };
chan on_its_way = [4] of { mtype, byte };
chan requests = [1] of { byte }; /* where values are stored: the version that flush() posts */

byte first[PLACES], second[PLACES]; /* the words of each place: whose value they are */
byte version;
byte said; /* by the writer, in all */
bool is_over;

proctype Writer() {
    byte number;
    do
    :: number == puts -> break
    :: number != puts ->
        number++;
        if
        :: wrong(version_first) -> on_its_way!VERSION, number
        :: else
        fi;
        if /* a value's words land in any order */
        :: on_its_way!FIRST, number; on_its_way!SECOND, number
        :: on_its_way!SECOND, number; on_its_way!FIRST, number
        fi;
        if
        :: break /* it dies */
        :: true
        fi;
        if
        :: wrong(version_first)
        :: else -> on_its_way!VERSION, number
        fi;
        said = number;
        if
        :: true
        :: !store -> on_its_way!VERSION, number /* flush() */
        :: store && wrong(flush_posts) && empty(requests) -> requests!number
        :: break
        fi
    od;
    is_over = true
}

proctype Memory() {
    byte number;
end:
    do
    :: atomic { on_its_way?FIRST, number -> first[number % places] = number; number = 0 }
    :: atomic { on_its_way?SECOND, number -> second[number % places] = number; number = 0 }
    :: atomic { on_its_way?VERSION, number -> version = TORN };
       atomic { version = number; number = 0 }
    :: atomic { nempty(requests) -> requests?number; version = number; number = 0 }
    od
}

proctype Reader() {
    byte got, before, now, one, other;
    do
    :: is_over && empty(on_its_way) && empty(requests) && version == got -> break
    :: atomic { version != TORN && version != got -> before = version };
       if /* the copy, its words in any order */
       :: one = first[before % places]; other = second[before % places]
       :: other = second[before % places]; one = first[before % places]
       fi;
       atomic {
           now = version;
           if
           :: now == TORN && !wrong(torn_believed) -> skip /* anew */
           :: else ->
               if
               :: wrong(looks_once) || now == TORN || now - before <= AHEAD ||
                  (wrong(one_more_ahead) && now - before <= AHEAD + 1) ->
                   assert(one == before && other == before); /* the_copy_is_whole */
                   assert(before > got);                      /* no_version_comes_back */
                   got = before
               :: else /* anew */
               fi
           fi;
           one = 0; other = 0; before = 0; now = 0
       }
    od;
    assert(got == said) /* the_last_one_is_got */
}

init {
    start();
    c_code {
        now.puts = setting("MODEL_puts", 7);
        now.store = setting("MODEL_store", 0);
    }
    places = PLACES;
    if
    :: wrong(three_places) -> places = 3
    :: else
    fi;
    atomic {
        run Writer();
        run Memory();
        run Reader()
    }
}
