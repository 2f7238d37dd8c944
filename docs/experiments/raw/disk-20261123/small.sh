KNOB=$PWD/rr-knob CONNS=100 WARM=1 python3 run.py 6 w4 2000 1 'before=base:' 'short=knob:' 'before-ofc=base:open_file_cache max=4000;' 'short-ofc=knob:open_file_cache max=4000;' > warm.txt 2>&1
KNOB=$PWD/rr-knob WARM=1 python3 run.py 7 c100 128 1 't256=knob:directio 4k;' 't32=knob:directio 4k;|K5=32' 't16=knob:directio 4k;|K5=16' > turns-100k.txt 2>&1
KNOB=$PWD/rr-knob CONNS=100 WARM=1 python3 run.py 4 w4 2000 1 't256=knob:open_file_cache max=4000;' 't32=knob:open_file_cache max=4000;|K5=32' 'r256=knob:return 200;' 'r32=knob:return 200;|K5=32' > turns-small.txt 2>&1
