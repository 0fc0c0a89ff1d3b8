package android.content.res

import java.io.Closeable
import java.io.File
import java.io.FileDescriptor
import java.io.FileInputStream
import java.io.InputStream

public class AssetManager(private val root: File) {
    public fun openFd(fileName: String): AssetFileDescriptor = AssetFileDescriptor(File(root, fileName))

    public fun open(fileName: String): InputStream = FileInputStream(File(root, fileName))
}

public class AssetFileDescriptor(private val file: File) : Closeable {
    private val stream = FileInputStream(file)

    public fun getFileDescriptor(): FileDescriptor = stream.fd

    public fun getStartOffset(): Long = 0

    public fun getDeclaredLength(): Long = file.length()

    override fun close() = stream.close()
}
