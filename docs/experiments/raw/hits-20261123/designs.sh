B=ringroad
SECS=1 timeout 100 python3 run.py 100k 200 3 plain="$B|files" v1="$B|cache" v1-again="$B|cache" v1-buffered="$B|cache|buffered" plain-buffered="$B|files|buffered"
SECS=1 timeout 100 python3 run.py 4k 200 3 plain="$B|files" v1="$B|cache" v1-workers8="$B|cache|!ring_io_workers 8;" v1-buffered="$B|cache|buffered" plain-buffered="$B|files|buffered"
