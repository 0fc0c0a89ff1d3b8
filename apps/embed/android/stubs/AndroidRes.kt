// Signatures of the Android framework that the wrapper calls: compiled against, never shipped.
package android.content.res

import java.io.Closeable
import java.io.FileDescriptor

public class AssetManager {
    public fun openFd(fileName: String): AssetFileDescriptor = throw UnsupportedOperationException(fileName)
}

public open class AssetFileDescriptor : Closeable {
    public fun getFileDescriptor(): FileDescriptor = throw UnsupportedOperationException()

    public fun getStartOffset(): Long = throw UnsupportedOperationException()

    public fun getDeclaredLength(): Long = throw UnsupportedOperationException()

    override fun close() = throw UnsupportedOperationException()
}
