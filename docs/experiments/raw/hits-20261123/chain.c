// chain.c: processor time of open, read and close of a file, by io_uring: three operations, or one chain over a direct descriptor.
// chain FOLDER-LIST N MODE DEPTH ; mode 0 separate, 1 linked; direct reads of 8 KiB. Names: list file, one a line.
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <time.h>
static int fd; static unsigned *sqtail,*sqmask,*cqhead,*cqtail,*cqmask; static struct io_uring_sqe*sqes; static struct io_uring_cqe*cqes; static unsigned tail,staged;
static struct io_uring_sqe* get(void){ struct io_uring_sqe*s=&sqes[tail++ & *sqmask]; memset(s,0,sizeof*s); staged++; return s; }
static int enter(int wait){ __atomic_store_n(sqtail,tail,__ATOMIC_RELEASE); int n=staged; staged=0; int r=syscall(__NR_io_uring_enter,fd,n,wait,IORING_ENTER_GETEVENTS,NULL,0); if(r<n){perror("enter"); exit(1);} return r; }
static char *names,**list; static long nn,next,n,done,errs; static int mode; static char*bufs; static struct open_how how[512]; static int fds[512];
static long now_us(clockid_t c){struct timespec t; clock_gettime(c,&t); return t.tv_sec*1000000L+t.tv_nsec/1000;}
static void start(int k){
  struct io_uring_sqe*s=get(); s->opcode=IORING_OP_OPENAT2; s->fd=AT_FDCWD; s->addr=(unsigned long)list[random()%nn]; s->off=(unsigned long)&how[k]; s->len=sizeof(struct open_how); s->flags=IOSQE_ASYNC; s->user_data=k; next++;
  if(mode){ s->file_index=k+1; s->flags|=IOSQE_IO_LINK|IOSQE_CQE_SKIP_SUCCESS; s->user_data=k|0x10000;
    s=get(); s->opcode=IORING_OP_READ_FIXED; s->fd=k; s->flags=IOSQE_FIXED_FILE|IOSQE_IO_HARDLINK; s->addr=(unsigned long)(bufs+8192L*k); s->len=8192; s->buf_index=0; s->user_data=k|0x20000;
    s=get(); s->opcode=IORING_OP_CLOSE; s->file_index=k+1; s->user_data=k|0x30000; }
}
int main(int c,char**v){
  n=atol(v[2]); mode=atoi(v[3]); int depth=atoi(v[4]);
  FILE*f=fopen(v[1],"r"); fseek(f,0,SEEK_END); long z=ftell(f); rewind(f); names=malloc(z+1); fread(names,1,z,f); names[z]=0; list=malloc(8*1000000);
  for(char*p=strtok(names,"\n");p;p=strtok(NULL,"\n")) list[nn++]=p;
  srandom(time(0)^getpid());
  struct io_uring_params p={0}; p.flags=IORING_SETUP_SINGLE_ISSUER|IORING_SETUP_DEFER_TASKRUN|IORING_SETUP_CQSIZE; p.cq_entries=8192;
  fd=syscall(__NR_io_uring_setup,2048,&p); if(fd<0){perror("setup");return 1;}
  char*r=mmap(0,p.sq_off.array+p.sq_entries*4+p.cq_entries*16+4096,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_POPULATE,fd,0);
  sqes=mmap(0,p.sq_entries*64,PROT_READ|PROT_WRITE,MAP_SHARED|MAP_POPULATE,fd,IORING_OFF_SQES);
  sqtail=(unsigned*)(r+p.sq_off.tail); sqmask=(unsigned*)(r+p.sq_off.ring_mask); unsigned*arr=(unsigned*)(r+p.sq_off.array); for(unsigned i=0;i<p.sq_entries;i++)arr[i]=i;
  cqhead=(unsigned*)(r+p.cq_off.head);cqtail=(unsigned*)(r+p.cq_off.tail);cqmask=(unsigned*)(r+p.cq_off.ring_mask);cqes=(void*)(r+p.cq_off.cqes);
  bufs=mmap(0,8192L*512,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_POPULATE,-1,0);
  struct iovec iv={bufs,8192L*512}; if(syscall(__NR_io_uring_register,fd,IORING_REGISTER_BUFFERS,&iv,1)){perror("bufs");return 1;}
  int slots[512]; memset(slots,-1,sizeof slots); if(syscall(__NR_io_uring_register,fd,IORING_REGISTER_FILES,slots,512)){perror("files");return 1;}
  for(int k=0;k<512;k++){ how[k].flags=O_RDONLY|O_DIRECT|O_NOFOLLOW|O_NONBLOCK|(mode?0:O_CLOEXEC); }
  struct rusage a,b; getrusage(RUSAGE_SELF,&a); long w=now_us(CLOCK_MONOTONIC);
  long inflight=0; for(int k=0;k<depth;k++){start(k);inflight++;}
  while(inflight){ enter(1); unsigned h=*cqhead,t=__atomic_load_n(cqtail,__ATOMIC_ACQUIRE);
    for(;h!=t;h++){ struct io_uring_cqe*q=&cqes[h & *cqmask]; int k=q->user_data&0xffff, st=q->user_data>>16;
      if(st==1){errs++; continue;}
      if(mode){ if(st==2){ if(q->res<=0)errs++; continue;} inflight--; done++; if(next<n){start(k);inflight++;} }
      else if(st==0){ if(q->res<0){errs++;inflight--;continue;} fds[k]=q->res; struct io_uring_sqe*s=get(); s->opcode=IORING_OP_READ_FIXED; s->fd=q->res; s->addr=(unsigned long)(bufs+8192L*k); s->len=8192; s->user_data=k|0x20000; }
      else if(st==2){ if(q->res<=0)errs++; struct io_uring_sqe*s=get(); s->opcode=IORING_OP_CLOSE; s->fd=fds[k]; s->user_data=k|0x30000; }
      else { inflight--; done++; if(next<n){start(k);inflight++;} }
    } __atomic_store_n(cqhead,h,__ATOMIC_RELEASE); }
  w=now_us(CLOCK_MONOTONIC)-w; getrusage(RUSAGE_SELF,&b);
  double u=(b.ru_utime.tv_sec-a.ru_utime.tv_sec)*1e6+b.ru_utime.tv_usec-a.ru_utime.tv_usec, s=(b.ru_stime.tv_sec-a.ru_stime.tv_sec)*1e6+b.ru_stime.tv_usec-a.ru_stime.tv_usec;
  printf("%s %ld files, %ld errors, %.0f/s, cpu us/file user %.2f system %.2f all %.2f\n",mode?"linked":"apart ",done,errs,done*1e6/w,u/done,s/done,(u+s)/done);
}
